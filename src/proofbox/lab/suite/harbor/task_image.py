"""The image of a task: the one that it names, or one that is built from its Dockerfile."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from proofbox.core.spec_files.problems import Problem, invalid
from proofbox.errors import EngineRefused, ImageAbsent, ProviderUnavailable, StartFailed
from proofbox.lab.suite.harbor.task_table import Environment
from proofbox.lab.suite.harbor.task_tree import tree_sha256
from proofbox.sandbox.containers.image_files import ImageDefaults, build_image, image_defaults

USE_HOST_ROOT = "or run it on this host's programs (results are not comparable): --host-root"
BUILD = "or let proofbox build the images that have a Dockerfile: --build"


class TaskImage:
    """The image of the task in `root`, whose name in ids is `id`."""

    def __init__(self, root: Path, id: str, environment: Environment) -> None:
        self._root = root
        self._context = root / "environment"
        self._environment = environment
        self._is_named = environment.docker_image is not None
        self.name = environment.docker_image or self._name_to_build(id)

    def _name_to_build(self, id: str) -> str:
        """Return the name of the image to build, derived from the content of its directory."""
        if not (self._context / "Dockerfile").is_file():
            raise invalid(str(self._root), [Problem("it has neither a docker_image nor an environment/Dockerfile")])
        return f"harbor-{id}:{tree_sha256(self._context)[:12]}"

    def defaults(self, *, build: bool) -> ImageDefaults:
        """Ask the engine for the image, and build a missing one if wanted. Raises `ImageAbsent` with fix hints."""
        try:
            return image_defaults(self.name)
        except StartFailed as error:
            if not build or self._is_named:
                raise self._absent(f"the engine has no image {self.name!r}, which {self._root.name} needs") from error
        except ProviderUnavailable as error:
            hints = [*error.fix_hints, USE_HOST_ROOT]
            raise ProviderUnavailable(error.message, op="suite", fix_hints=hints, details=error.details) from None
        try:
            build_image(self._context, self.name, seconds=self._environment.build_timeout)
            return image_defaults(self.name)
        except (EngineRefused, ProviderUnavailable, StartFailed) as error:
            raise self._absent(f"the image of {self._root.name} could not be built: {error.message}") from error

    def _absent(self, message: str) -> ImageAbsent:
        pull = [f"docker pull {self.name}"] if self._is_named else []
        build = [f"docker build -t {self.name} {self._context}"] if (self._context / "Dockerfile").is_file() else []
        allow = [] if self._is_named else [BUILD]
        hints = [*pull, *build, *allow, USE_HOST_ROOT]
        return ImageAbsent(message, op="suite", fix_hints=hints, details={"image": self.name})


def all_absent(absent: Mapping[str, ImageAbsent]) -> ImageAbsent:
    """Return one error for all missing images, with the command that provides each."""
    if len(absent) == 1:
        return next(iter(absent.values()))
    hints = [error.fix_hints[0] for error in absent.values()]
    images = [error.details["image"] for error in absent.values()]
    names = ", ".join(list(absent)[:10]) + (", …" if len(absent) > 10 else "")
    more = [BUILD] if any(BUILD in error.fix_hints for error in absent.values()) else []
    return ImageAbsent(
        f"the engine lacks the images of {len(absent)} tasks: {names}",
        op="suite",
        fix_hints=[*dict.fromkeys(hints), *more, USE_HOST_ROOT],
        details={"images": images},
    )
