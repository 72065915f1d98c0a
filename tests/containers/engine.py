"""PostgreSQL in containers: what is missing for it, and one for as long as a block lasts."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping

from docker.errors import DockerException, ImageNotFound  # type: ignore[import-untyped]
from testcontainers.community.postgres import PostgresContainer
from testcontainers.core.config import testcontainers_config
from testcontainers.core.docker_client import DockerClient

_PORT = 5432
_logger = logging.getLogger(__name__)


def missing(image: str) -> str | None:
    """Say what is missing for a container of an image, after an attempt to pull it; None where nothing is."""
    try:
        images = DockerClient().client.images
    except DockerException:
        return "no container engine answers"
    wanted = [image]
    if not testcontainers_config.ryuk_disabled:
        # It removes the containers of a run that was killed.
        wanted.append(testcontainers_config.ryuk_image)
    for name in wanted:
        try:
            images.get(name)
        except ImageNotFound:
            try:
                images.pull(name)
            except DockerException as error:
                _logger.warning("%s", error)
                return f"the image {name} cannot be had"
    return None


def postgres(image: str, settings: Mapping[str, str], *, port: int | None = None) -> PostgresContainer:
    """Return a container, to be entered, that runs PostgreSQL with some settings.

    Args:
        image: The image's name, with its tag.
        settings: PostgreSQL's settings.
        port: The port on the host, which is then the same after a restart; None: any.
    """
    container = PostgresContainer(image, username="postgres", password=secrets.token_urlsafe(18), dbname="postgres")
    container.with_command([part for name, value in settings.items() for part in ("-c", f"{name}={value}")])
    if port is not None:
        container.with_bind_ports(_PORT, port)
    return container


def dsn_of(container: PostgresContainer) -> str:
    """Return where to connect to a running container's server."""
    return container.get_connection_url(driver=None)
