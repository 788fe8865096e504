"""What the API takes and gives, as OpenAPI describes it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from electra.serve.networks import Verb
from electra.tasks.rows import Example, Kind, Question, Sentence

MAX_CHARACTERS = 20_000
MAX_ROWS = 64
MAX_WORDS = 2_000

Text = Annotated[str, Field(max_length=MAX_CHARACTERS)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid")


class DetectRequest(_Request):
    text: Text
    threshold: Share = 0.5
    """Tokens are flagged from this probability on."""


class ReplaceRequest(_Request):
    text: Text
    rate: Annotated[float, Field(gt=0, le=0.5, allow_inf_nan=False)] = 0.15
    """Share of the tokens that the generator is asked for."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """The same seed gives the same samples."""
    threshold: Share = 0.5


class ScoreRequest(_Request):
    text: Text


class EncodeRequest(_Request):
    texts: Annotated[list[Text], Field(max_length=MAX_ROWS)]
    pooling: Literal["mean", "cls"] = "mean"


class TextRow(_Request):
    """A text, or two for a model that was fine-tuned on pairs."""

    text: Text
    pair: Text | None = None

    def row(self, number: int) -> Example:
        return Example(id=str(number), text=self.text, pair=self.pair)


class WordsRow(_Request):
    """The words of a sentence to tag."""

    words: Annotated[list[Text], Field(max_length=MAX_WORDS)]

    def row(self, number: int) -> Sentence:
        return Sentence(id=str(number), words=tuple(self.words))


class QuestionRow(_Request):
    """A question about a passage."""

    question: Text
    context: Text

    def row(self, number: int) -> Question:
        return Question(id=str(number), question=self.question, context=self.context)


class PredictRequest(_Request):
    rows: Annotated[list[TextRow | WordsRow | QuestionRow], Field(max_length=MAX_ROWS)]


class Predicted(BaseModel):
    """One prediction a row, as `electra predict` writes them."""

    predictions: list[dict[str, Any]]
    lost_tokens: list[int]
    """How many tokens of each row were not read, since the row is longer than the model takes."""


class Encoded(BaseModel):
    """One vector a text."""

    vectors: list[list[float]]


class TaskFacts(BaseModel):
    """What a fine-tuned model was fine-tuned on."""

    title: str
    kind: Kind
    labels: list[str]
    pairs: bool
    length: int
    """Longest sequence in tokens; what exceeds it is cut, except for tags and passages."""


class ModelFacts(BaseModel):
    """What is served, and what it can do."""

    name: str
    ready: bool
    """False for a run without a checkpoint."""
    verbs: list[Verb]
    run: bool
    """Whether /api/run follows a run."""
    step: int | None = None
    """Of the checkpoint that is served."""
    layers: int | None = None
    width: int | None = None
    length: int | None = None
    parameters: int | None = None
    task: TaskFacts | None = None
    max_characters: int = MAX_CHARACTERS


class Problem(BaseModel):
    """Why there is no answer."""

    error: str
