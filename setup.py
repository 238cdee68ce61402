"""Build settings that pyproject.toml cannot express: installed packages also need top-level files.

The files are installed below `bert_probe/server/top` with the same relative paths, and found by
`bert_probe.server.paths`.
"""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["bert_probe", "bert_probe.*"]), "bert_probe.server.top"],
    package_dir={"bert_probe.server.top": "."},
    package_data={
        "bert_probe": ["data/*", "py.typed", "*.pyi"],
        "bert_probe.reports": ["*.css", "*.html"],
        "bert_probe.views": ["*.json", "*.html", "built/*"],
        "bert_probe.api": ["static/*"],
        "bert_probe.server": ["static/*"],
        "bert_probe.ui": ["static/*"],
        "bert_probe.server.top": [".streamlit/config.toml", "pages/*.py"],
    },
    # Install only the package data listed above. Otherwise, setuptools would install all top-level files,
    # because a source distribution contains them.
    include_package_data=False,
    # With this name, setuptools does not install this script as a part of the package.
    script_name="setup.py",
)
