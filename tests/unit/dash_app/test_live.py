from dash import dcc, html, no_update

from dash_app.live import Areas, shape_of, values_of

AREAS = Areas("fleet", ("cards",))


def card(text: str, width: str = "10%", href: str = "/a") -> html.Div:
    return html.Div(
        [
            dcc.Link(text, href=href, className="name", title="a title"),
            html.Div(html.Div(className="fill", style={"width": width})),
        ]
    )


def test_new_figures_do_not_change_the_shape() -> None:
    assert shape_of(card("40 %")) == shape_of(card("55 %", width="55%"))


def test_a_new_link_changes_the_shape() -> None:
    assert shape_of(card("x")) != shape_of(card("x", href="/b"))


def test_a_new_element_changes_the_shape() -> None:
    assert shape_of([card("x")]) != shape_of([card("x"), card("x")])


def test_text_beside_an_element_belongs_to_the_shape() -> None:
    assert shape_of(html.P(["Free", html.B("x")])) != shape_of(html.P(["Held", html.B("x")]))


def test_values_are_in_document_order() -> None:
    assert values_of(card("40 %", width="40%")) == [
        (None, None, None, None),
        ("name", "a title", None, "40 %"),
        (None, None, None, None),
        ("fill", None, "40%", None),
    ]


def test_children_are_sent_only_for_a_new_shape() -> None:
    shapes, _, first = AREAS.fill(None, {"cards": card("40 %")})
    assert first is not no_update
    _, values, second = AREAS.fill(shapes, {"cards": card("55 %")})
    assert second is no_update
    assert values["cards"][1][3] == "55 %"
