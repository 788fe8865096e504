"""The JSON API, and the files of the page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from electra import __version__
from electra.errors import ElectraError
from electra.inference.results import Corruption, Detection, TextScore
from electra.serve.batching import Busy
from electra.serve.messages import (
    DetectRequest,
    Encoded,
    EncodeRequest,
    ModelFacts,
    Predicted,
    PredictRequest,
    Problem,
    ReplaceRequest,
    ScoreRequest,
    TaskFacts,
)
from electra.serve.networks import Query
from electra.serve.run_follow import RunState
from electra.serve.service import NotReady, Service

PAGE = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/draw.js": ("draw.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
_ROWS = '{"text": ...}, {"text": ..., "pair": ...}, {"words": [...]} or {"question": ..., "context": ...}'
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    413: {"model": Problem, "description": "The body is too large"},
    422: {"model": Problem, "description": "The request cannot be answered"},
    429: {"model": Problem, "description": "Too many requests; Retry-After says when to ask again"},
    503: {"model": Problem, "description": "The run has no checkpoint yet"},
}


def create_app(service: Service) -> FastAPI:
    """The application; whoever serves it starts the service's thread."""
    app = FastAPI(
        title="Electra",
        description=f"Answers of {service.name}",
        version=__version__,
        docs_url=None,  # their scripts would come from another site
        redoc_url=None,
        responses=_PROBLEMS,
        # Else an endpoint in the environment would get a record of every request.
        telemetry={"auto_configure": False, "tracing": False, "metrics": False, "logs": False},
    )
    _add_page(app)
    _add_verbs(app, service)
    _add_facts(app, service)
    _add_problems(app)
    return app


def _add_page(app: FastAPI) -> None:
    folder = files("electra.serve") / "page"
    for address, (name, kind) in PAGE.items():
        app.add_route(address, _file((folder / name).read_bytes(), kind), include_in_schema=False)


def _file(content: bytes, kind: str) -> Callable[[Request], Awaitable[Response]]:
    async def give(request: Request) -> Response:
        return Response(content, media_type=kind)

    return give


def _add_verbs(app: FastAPI, service: Service) -> None:
    answer = service.batcher.answer

    @app.post("/api/detect")
    async def detect(asked: DetectRequest) -> Detection:
        """Every token of a text, with the probability that it was replaced."""
        found: Detection = await answer(Query("detect", threshold=asked.threshold), asked.text)
        return found

    @app.post("/api/replace")
    async def replace(asked: ReplaceRequest) -> Corruption:
        """A text in which the generator replaced tokens, and the probability of each token that it was replaced."""
        query = Query("replace", threshold=asked.threshold, rate=asked.rate)
        found: Corruption = await answer(query, (asked.text, asked.seed))
        return found

    @app.post("/api/score")
    async def score(asked: ScoreRequest) -> TextScore:
        """The pseudo-log-likelihood of a text, token by token."""
        found: TextScore = await answer(Query("score"), asked.text)
        return found

    @app.post("/api/predict")
    async def predict(asked: PredictRequest) -> Predicted:
        """A fine-tuned model's predictions."""
        rows = [one.row(number) for number, one in enumerate(asked.rows)]
        found = await answer(Query("predict"), rows)
        return Predicted(predictions=[one for one, _ in found], lost_tokens=[lost for _, lost in found])

    @app.post("/api/encode")
    async def encode(asked: EncodeRequest) -> Encoded:
        """Texts as vectors: the encoder's hidden states, pooled."""
        return Encoded(vectors=await answer(Query("encode", pooling=asked.pooling), asked.texts))


def _add_facts(app: FastAPI, service: Service) -> None:
    @app.get("/api/model")
    async def model() -> ModelFacts:
        """What is served, and what it can do."""
        networks, follows = service.networks, service.run is not None
        if networks is None:
            return ModelFacts(name=service.name, ready=False, verbs=[], run=follows)
        tuned, encoder = networks.finetuned, networks.encoder
        parts = (tuned.network,) if tuned else (encoder.embeddings, encoder.encoder)
        return ModelFacts(
            name=networks.name,
            ready=True,
            verbs=list(networks.verbs),
            run=follows,
            step=networks.step,
            layers=encoder.config.layers,
            width=encoder.config.width,
            length=encoder.length,
            parameters=sum(one.numel() for part in parts for one in part.parameters()),
            task=None
            if tuned is None
            else TaskFacts(
                title=tuned.about.title,
                kind=tuned.about.kind,
                labels=list(tuned.about.labels),
                pairs=tuned.about.pairs,
                length=tuned.about.length,
            ),
        )

    @app.get("/api/run")
    def run() -> RunState:
        """How far the run is: curves, and its latest sample."""
        if service.run is None:
            raise HTTPException(404, f"{service.name} is not a run folder")
        return service.run.state()


def _add_problems(app: FastAPI) -> None:
    """Every failure is JSON with one line."""

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            return _problem(422, "the body is not JSON")
        if len(first["loc"]) > 3 and first["loc"][1] == "rows":  # every kind of row was tried
            return _problem(422, _row_problem(error.errors()))
        place = ".".join(str(part) for part in first["loc"] if part != "body")
        return _problem(422, f"{place}: {first['msg']}" if place else str(first["msg"]))

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> JSONResponse:
        return _problem(error.status_code, str(error.detail))

    @app.exception_handler(ElectraError)
    async def impossible(request: Request, error: ElectraError) -> JSONResponse:
        return _problem(422, str(error))

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> JSONResponse:
        return _problem(500, "this is a bug; the server's output has its traceback")

    @app.exception_handler(Busy)
    async def busy(request: Request, error: Busy) -> JSONResponse:
        return _problem(429, "too many requests wait; ask again later", retry_after_s=1)

    @app.exception_handler(NotReady)
    async def waiting(request: Request, error: NotReady) -> JSONResponse:
        return _problem(503, str(error), retry_after_s=5)


def _row_problem(errors: Sequence[Any]) -> str:
    """What is wrong with a row: a field of it, or that it has the fields of no kind of row."""
    unlike = {
        one["loc"][:4] for one in errors if one["type"] in ("missing", "extra_forbidden", "model_attributes_type")
    }
    for one in errors:
        if len(one["loc"]) > 4 and one["loc"][:4] not in unlike:
            return f"rows.{one['loc'][2]}.{one['loc'][4]}: {one['msg']}"
    return f"rows.{errors[0]['loc'][2]}: give {_ROWS}"


def _problem(status: int, reason: str, *, retry_after_s: int = 0) -> JSONResponse:
    headers = {"retry-after": str(retry_after_s)} if retry_after_s else None
    tidy = reason.encode(errors="replace").decode()  # half a surrogate pair is no JSON
    return JSONResponse({"error": tidy}, status, headers)
