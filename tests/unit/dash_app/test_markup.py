"""Areas as HTML text."""

from dash import dcc, html

from dash_app.components import labeled, plain
from dash_app.markup import markup


def test_components_become_html_with_escaped_texts() -> None:
    component = html.Div(
        [
            plain(html.Span, "<b> & co.", title='"x"', style={"minHeight": "3px", "width": "4%"}),
            None,
            dcc.Link("GPU 0", href="/dashboards/?a=1&b=2", className="vdd-tile"),
            html.Br(),
            7,
        ],
        hidden=True,
        tabIndex="0",
        **labeled("<i>"),
    )
    assert markup(component) == (
        '<div hidden tabindex="0" aria-label="&lt;i&gt;">'
        '<span title="&quot;x&quot;" style="min-height:3px;width:4%">&lt;b&gt; &amp; co.</span>'
        '<a href="/dashboards/?a=1&amp;b=2" class="vdd-tile">GPU 0</a><br>7</div>'
    )
