"""What pyproject.toml cannot say: files of the top level that an installed package needs too.

They keep their places to each other in `bert_probe/server/top`, where `bert_probe.server.paths` finds them.
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
    # Package data are what is listed here, not whatever a source distribution holds: the top level is in it.
    include_package_data=False,
    # Known by this name the script itself stays out of the package.
    script_name="setup.py",
)
