"""Lines of `run` and `show` about the images that a workflow's tasks name: the digest, or that the image was ignored."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from rich.text import Text

from flowsched.cli.printing import render
from flowsched.client import Client
from flowsched.workflow.views import ImageView, StageView

#: Of so many stages the first task is asked for its images.
STAGES: Final = 20


async def used_images(client: Client, ident: str, stages: Sequence[StageView]) -> list[ImageView]:
    """The images of each stage's first task, each once, as far as its tries have ended."""

    async def of_first(stage: str) -> list[ImageView]:
        async for task in client.tasks(
            ident, stage=stage, page=1
        ):  # of an engine's run it need not have the number 0
            tries = (await client.task(ident, stage, task.index)).attempts
            return [image for each in tries for image in each.images]
        return []

    begun = [stage for stage in stages if any(stage.counts.get(state) for state in ("SUCCEEDED", "FAILED"))]
    found = await asyncio.gather(*(of_first(stage.name) for stage in begun[:STAGES]))
    return list({(image.name, image.digest): image for images in found for image in images}.values())


def image_line(image: ImageView) -> Text:
    """One image, for a person."""
    if image.digest:
        return Text.assemble("image ", render.text(image.name), " ", render.text(image.digest, "dim"))
    return Text.assemble(
        "image ", render.text(image.name, "bold"), (" ignored", "yellow"),
        ": its tasks ran with the programs of this machine (--images ignore)",
    )  # fmt: skip
