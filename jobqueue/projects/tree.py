"""The tree of a tenant's projects: each is below its parent, or directly below the tenant."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from core.errors import InvalidInputError, NotFoundError
from jobqueue.projects.models import Project

MAX_DEPTH = 8


class ProjectTree:
    """The projects of one tenant by id, and how they are nested."""

    def __init__(self, projects: Iterable[Project]) -> None:
        self.by_id = {project.id: project for project in projects}
        self._children: dict[str | None, list[Project]] = defaultdict(list)
        for project in sorted(self.by_id.values(), key=lambda project: project.name.casefold()):
            self._children[project.parent_id].append(project)

    def find(self, name_or_id: str) -> Project | None:
        """Return a project by its id or name; None if there is none."""
        by_name = (project for project in self.by_id.values() if project.name == name_or_id)
        return self.by_id.get(name_or_id) or next(by_name, None)

    def get(self, name_or_id: str) -> Project:
        """Return a project by its id or name; raise `NotFoundError` if there is none."""
        project = self.find(name_or_id)
        if project is None:
            raise NotFoundError.of("project", name_or_id)
        return project

    def path(self, project_id: str | None) -> list[Project]:
        """Return a project and those above it, the topmost last."""
        path: list[Project] = []
        while project_id is not None:
            path.append(self.by_id[project_id])
            project_id = path[-1].parent_id
        return path

    def children(self, project_id: str | None) -> Sequence[Project]:
        """Return the projects directly below a project, or below the tenant, by name."""
        return self._children[project_id]

    def below(self, project_id: str) -> Iterator[Project]:
        """Yield all projects below a project."""
        for child in self.children(project_id):
            yield child
            yield from self.below(child.id)

    def walk(self, parent_id: str | None = None, depth: int = 0) -> Iterator[tuple[Project, int]]:
        """Yield all projects with their depth, each before those below it."""
        for child in self.children(parent_id):
            yield child, depth
            yield from self.walk(child.id, depth + 1)

    def check_parent(self, project: Project | None, parent: Project) -> None:
        """Check that a project, or a new one, can be below another.

        Raises:
            InvalidInputError: it would be below itself, too deep, or in an archived project.
        """
        error = self._parent_error(project, parent)
        if error:
            raise InvalidInputError(error, errors={"parent": [error]})

    def _parent_error(self, project: Project | None, parent: Project) -> str:
        path = self.path(parent.id)
        if project is not None and project in path:
            below = [step.name for step in reversed(path[: path.index(project) + 1])]
            return (
                f"{project.name!r} can't be below {parent.name!r}: that would close the circle "
                f"{' > '.join([*below, project.name])}. Choose a project that is not below it."
            )
        if parent.archived_at is not None:
            return f"{parent.name!r} is archived. Restore it, or choose another parent."
        depth = len(path) + (1 if project is None else self._height(project))
        if depth > MAX_DEPTH:
            return (
                f"Below {parent.name!r} the tree would have {depth} levels; at most {MAX_DEPTH} "
                "are possible. Choose a parent further up."
            )
        return ""

    def _height(self, project: Project) -> int:
        return 1 + max((self._height(child) for child in self.children(project.id)), default=0)
