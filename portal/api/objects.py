"""Objects of a resource, whose operations each call one service in a transaction.

A service gets the id in the path and what the body requests, and what `portal.services` supplies.
An operation that does more is a view of its own, see `portal.api.blueprint`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any

from marshmallow import Schema
from sqlalchemy.orm import Session

from core.paging import Page
from portal.api.blueprint import APIBlueprint, Need
from portal.api.schemas import envelope, page_of, whole_list
from portal.context import database
from portal.services import Service, call


def _rows(_session: Session, rows: Sequence[Any]) -> Sequence[Any]:
    return rows


@dataclass(frozen=True, slots=True)
class Objects:
    """The objects of a resource; each method declares an operation with its description.

    Attributes:
        resource: the blueprint of the operations.
        path: the URL path of an object below the resource's, with its id.
        read: the service that returns an object.
        answer: the schema that an object is shown with.
        shown: returns what the schema shows of rows.
        model: the table whose row stands for an object, where it can be changed.
        etag: the schema of what an `ETag` stands for, where the answer has volatile fields.
        body: the schema of the body that creates or replaces an object.
        request: returns what services take from the fields of such a body.
    """

    resource: APIBlueprint
    path: str
    read: Service
    answer: type[Schema]
    shown: Callable[[Session, Sequence[Any]], Sequence[Any]] = _rows
    model: type | None = None
    etag: Schema | None = None
    body: type[Schema] | None = None
    request: Callable[..., object] = dict

    def lists(
        self,
        text: str,
        service: Service,
        *,
        query: type[Schema] | None = None,
        path: str = "",
        answer: type[Schema] | None = None,
        name: str = "list_all",
        needs: Need | None = None,
    ) -> None:
        """List what a service returns: a page, or a short list as a whole.

        Args:
            text: the description of the operation.
            service: returns the rows.
            query: filters, order and page, which the service gets by name.
            path: the URL path below the resource's.
            answer: the schema of an entry, where these are not its objects.
            name: the name of the operation.
            needs: the required permission, where it is not the resource's.
        """

        def view(*, query: Mapping[str, Any] | None = None, **ids: str) -> dict[str, Any]:
            with database() as session:
                rows = call(service, session, *ids.values(), **(query or {}))
                items = rows.items if isinstance(rows, Page) else rows
                shown = items if answer else self.shown(session, items)
                return envelope(rows, shown) if isinstance(rows, Page) else whole_list(shown)

        options = {"query": query, "answer": page_of(answer or self.answer), "needs": needs}
        self._declare("GET", path, view, text=text, name=name, **options)

    def creates(self, text: str, service: Service) -> None:
        """Create an object with a service."""
        options = {"body": self.body, "status": HTTPStatus.CREATED}
        view = self._changing(service, request=self.request)
        self._declare("POST", "", view, text=text, name="create", **options)

    def shows(self, text: str, *, has_etag: bool = True, name: str = "show") -> None:
        """Return an object; without `ETag` if it changes with time."""

        def view(**ids: str) -> object:
            with database() as session:
                return self._read(session, *ids.values())

        self._declare("GET", self.path, view, text=text, name=name, has_etag=has_etag)

    def shows_part(
        self, text: str, service: Service, part: str, *, answer: type[Schema], name: str
    ) -> None:
        """Return what a service reads of an object; `part` is the last part of the URL path."""

        def view(**ids: str) -> object:
            with database() as session:
                return call(service, session, *ids.values())

        self._declare("GET", f"{self.path}/{part}", view, text=text, name=name, answer=answer)

    def replaces(self, text: str, service: Service, *, name: str = "replace") -> None:
        """Replace an object, or some of its fields, with a service."""
        options = {"body": self.body, "has_etag": True}
        view = self._changing(service, request=self.request, is_guarded=True)
        self._declare("PUT", self.path, view, text=text, name=name, **options)

    def deletes(self, text: str, service: Service, *, name: str = "delete") -> None:
        """Delete an object with a service."""

        def view(**ids: str) -> None:
            with database() as session:
                self.check_if_match(session, *ids.values())
                call(service, session, *ids.values())

        options = {"answer": None, "status": HTTPStatus.NO_CONTENT}
        self._declare("DELETE", self.path, view, text=text, name=name, **options)

    def acts(
        self,
        text: str,
        service: Service,
        action: str,
        *,
        body: type[Schema] | None = None,
        answer: type[Schema] | None = None,
        name: str = "",
        **options: Any,  # noqa: ANN401 - those of `operation`
    ) -> None:
        """Change an object with a service of another kind.

        Args:
            text: the description of the operation.
            service: makes the change.
            action: the last part of the URL path.
            body: the schema of the body, whose fields the service gets by name.
            answer: the schema of the service's result, where that is not the object.
            name: the name of the operation, by default the action.
            options: others of the operation, such as its status.
        """
        view = self._changing(service, is_shown=answer is None)
        options |= {"body": body, "answer": answer or self.answer}
        path, name = f"{self.path}/{action}", name or action.replace("-", "_")
        self._declare("POST", path, view, text=text, name=name, **options)

    def check_if_match(self, session: Session, *idents: str) -> None:
        """Refuse a change with 412 unless the object has the ETag that `If-Match` names."""
        read = partial(self._read, session, *idents)
        schema = self.etag or self.answer
        self.resource.check_if_match(session, self.model, idents[-1], read, schema)

    def _declare(
        self,
        method: str,
        path: str,
        view: Service,
        *,
        text: str,
        name: str,
        **options: Any,  # noqa: ANN401 - those of `operation`
    ) -> None:
        view.__name__, view.__doc__ = name, text
        options = {"answer": self.answer, "etag": self.etag, **options}
        self.resource.operation(method, path, **options)(view)

    def _changing(
        self,
        service: Service,
        *,
        request: Callable[..., object] | None = None,
        is_guarded: bool = False,
        is_shown: bool = True,
    ) -> Service:
        def view(
            *,
            body: Mapping[str, Any] | None = None,
            query: Mapping[str, Any] | None = None,
            **ids: str,
        ) -> object:
            requested = [request(**body)] if request and body is not None else []
            by_name = {**(query or {}), **({} if requested else body or {})}
            with database() as session:
                if is_guarded:
                    self.check_if_match(session, *ids.values())
                result = call(service, session, *ids.values(), *requested, **by_name)
                return self.shown(session, [result])[0] if is_shown else result

        return view

    def _read(self, session: Session, *idents: str) -> object:
        return self.shown(session, [call(self.read, session, *idents)])[0]
