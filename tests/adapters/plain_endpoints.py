"""The endpoints of `future_endpoints`, with annotations that are what they name."""

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel

from streamguard.adapters.fastapi import guarded

__all__ = ["router"]


class Prompt(BaseModel):
    text: str
    times: int = 1


def current_user(token: str = "nobody") -> str:
    return f"user {token}"


User = Annotated[str, Depends(current_user)]
router = APIRouter(prefix="/plain")


@router.post("/yields/{room}")
@guarded
async def yields(room: int, prompt: Prompt, user: User, loud: Annotated[bool, Query()] = False) -> AsyncIterator[str]:
    yield f"{room + 1} {user} "
    for _ in range(prompt.times):
        yield prompt.text.upper() if loud else prompt.text


@router.post("/returns/{room}")
@guarded(dialect="openai")
async def returns(room: int, prompt: Prompt, user: User, loud: bool = False) -> AsyncIterator[str]:
    async def generate() -> AsyncIterator[str]:
        yield f"{room + 1} {user} "
        for _ in range(prompt.times):
            yield prompt.text.upper() if loud else prompt.text

    return generate()


class Service:
    """Endpoints that are methods, added where the instance is made."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.router = APIRouter(prefix=f"/{name}")
        self.router.add_api_route("/decorated", self.decorated, methods=["PUT"])
        self.router.add_api_route("/bound", guarded(self.bound), methods=["PATCH"])

    @guarded
    async def decorated(self, prompt: Prompt, user: User) -> AsyncIterator[str]:
        yield f"{self.name} {user} {prompt.text}"

    async def bound(self, prompt: Prompt, user: User) -> AsyncIterator[str]:
        yield f"{self.name} {user} {prompt.text}"


router.include_router(Service("service").router)
