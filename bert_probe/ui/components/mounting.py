"""Mount Streamlit components from the JavaScript modules that are built in `js/`."""

from __future__ import annotations

from typing import Any

from streamlit.components.v2 import component

from bert_probe.server import responses
from bert_probe.views import built


def mounted(name: str) -> Any:
    """Return a Streamlit component that draws one of `built.COMPONENTS`.

    The browser fetches the module once; Streamlit would send it again with every mounted element.
    """
    # The strip's element becomes a list or a radio group, which ARIA does not allow for a section.
    tag = "div" if name == "strip" else "section"
    return component(
        f"bert_probe.{name}",
        html=f'<{tag} class="{built.COMPONENTS[name]}"></{tag}>',
        # Streamlit treats a single line as a file path, so the CSS and the JavaScript have two or more lines.
        css=built.style(name),
        js=(
            f"const script = await import(`${{location.origin}}{responses.script_path(name)}`);\n"
            "export default script.default;"
        ),
    )
