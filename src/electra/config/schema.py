"""Every option, once. A field's docstring is its help text; its path is its TOML key and override key."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

LayoutName = Literal["sentences", "paper-official", "packed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    layers: int = 12
    """Transformer layers of the discriminator."""
    width: int = 256
    """Hidden size of the discriminator."""
    heads: int = 4
    """Attention heads; must divide the width."""
    ffn: int = 1024
    """Inner size of the feed-forward blocks."""
    embedding: int = 128
    """Size of the token, position and type tables; projected to the width where they differ."""
    vocab_size: int = 30522
    """Entries of the token table; pre-training takes the size of the data's vocabulary, whatever stands here."""
    positions: int = 512
    """Longest sequence that the position table can address."""
    dropout: float = 0.1
    """Dropout on embeddings and on the output of each block."""
    attention_dropout: float = 0.1
    """Dropout on the attention probabilities."""
    dropout_share: float = 1.0
    """Share of the run, from its beginning, with dropout; after it there is none."""
    rotary: bool = False
    """Rotary positions: queries and keys turn by their place, and there is no position table. Plain PyTorch attention;
    exported as `transformers`' RoFormer."""
    init_std: float = 0.02
    """Standard deviation of the truncated normal that starts every layer but the Glorot ones."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GeneratorConfig:
    kind: Literal["transformer", "two-tower", "unigram", "uniform"] = "transformer"
    """Where replacements come from: a masked transformer, two causal ones, token frequencies, or any token alike."""
    width: float = 0.25
    """Generator hidden size as a fraction of `model.width`; its heads have 64 units, its blocks 4 x its width."""
    depth: float = 1.0
    """Generator layers as a fraction of `model.layers`."""
    tying: Literal["none", "embeddings", "all", "gdes"] = "embeddings"
    """What generator and discriminator share: nothing; all embedding tables and their norm; everything but the heads;
    or `gdes`, where the discriminator's token table is the generator's, without gradient, plus one of its own."""
    temperature: float = 1.0
    """Divides the generator's logits before sampling; above 1 samples are less likely ones."""
    temperature_start: float = 0.0
    """Temperature at the run's beginning, from which it moves in a straight line to `generator.temperature`; 0 means
    that temperature throughout."""
    temperature_share: float = 1.0
    """Share of the run after which the temperature is `generator.temperature`."""
    unigram_share: float = 0.0
    """Share of the run, at its beginning, in which replacements are drawn by token frequencies; the generator learns
    meanwhile."""
    disallow_correct: bool = False
    """Never sample the original token."""
    dropout_scale: float = 1.0
    """Dropout in the generator's layers as a fraction of the discriminator's; 0 means none. A narrow generator may not
    learn from context for a long time with it."""
    lr_scale: float = 1.0
    """Learning rate of the generator's own weights as a share of `optim.lr`; shared tables learn at the full rate."""
    clip: float = 0.0
    """Largest norm of the gradient of the generator's own weights, clipped apart from the rest; 0 means together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectiveConfig:
    name: Literal["rtd", "rtd-15", "replace-mlm", "all-tokens-mlm", "electric", "mlm"] = "rtd"
    """`rtd`: replaced token detection (ELECTRA). `rtd-15`: the same, with the loss over the masked positions only.
    `replace-mlm`: original tokens predicted at the masked positions, from samples in their place. `all-tokens-mlm`: at
    every position, with a copy gate. `electric`: energy-based. `mlm`: masked language modelling (BERT), alone."""
    mlm_weight: float = 1.0
    """Weight of the masked language modelling loss."""
    rtd_weight: float = 50.0
    """Weight of the replaced token detection loss (rtd, rtd-15, electric); losses over the vocabulary weigh 1."""
    base_rate_start: bool = False
    """Start the discriminator's output, or all-tokens-mlm's gate, at the share of replaced tokens among those scored
    instead of at one half: it leaves the plateau of token frequencies sooner where the generator starts there too."""
    unigram_start: bool = False
    """Start heads that predict tokens at the corpus's token frequencies instead of at equal chances: the first samples
    are then worth detecting, and the discriminator learns from context sooner."""
    correction_weight: float = 0.0
    """Weight of predicting the original tokens at the masked positions from the discriminator's states too, through
    the token table (rtd only)."""
    overlap_weight: float = 0.0
    """Weight of predicting from [CLS] which share of each of a row's two segments stands in the other (rtd, mlm).
    `data.copies` makes rows that share much; where it does so in a part of the run, only that part has this loss."""
    contrastive_weight: float = 0.0
    """Weight of classifying by [CLS] whether a sequence was corrupted; above 0, some are left alone (rtd only)."""
    contrastive_share: float = 0.2
    """Share of the sequences that are left alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskingConfig:
    rate: float = 0.15
    """Share of a sequence's tokens that are masked positions."""
    rate_start: float = 0.0
    """Share at the run's beginning, from which it moves in a straight line to `masking.rate` at its end; 0 means that
    rate throughout."""
    policy: Literal["without_replacement", "official"] = "without_replacement"
    """`official` draws positions with replacement, as the released code does: two samples for one position leave an
    arbitrary token there, which helps the discriminator to get going."""
    masked_share: float = 0.85
    """Share of the masked positions at which a generator of kind `transformer` reads [MASK]; the rest keep the original
    token. `mlm` reads 80 % [MASK], 10 % random and 10 % original tokens instead."""
    rare: float = 0.0
    """Preference for rare tokens: a token is chosen in proportion to its frequency to the power of minus this."""

    @property
    def first_rate(self) -> float:
        """The rate of the first step."""
        return self.rate_start or self.rate

    @property
    def largest_rate(self) -> float:
        """The largest rate of the run, for which there are masked positions."""
        return max(self.first_rate, self.rate)


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    layout: LayoutName = "sentences"
    """`sentences`: two segments of a document; every token enters a row, and each epoch cuts elsewhere.
    `paper-official`: as the official code does it, which discards what exceeds a row. `packed`: documents end to end,
    no padding; a token attends to its own document only. Positions run through the row, and its one [CLS] belongs to
    the first document."""
    length: int = 128
    """Tokens in a sequence, special tokens included."""
    length_start: int = 0
    """Tokens in a sequence at the run's beginning, a divisor of `data.length`: more sequences a step, the same tokens.
    0 means `data.length` throughout."""
    length_share: float = 0.5
    """Share of the run, in steps or of its time budget, with sequences of `data.length_start`."""
    single_segment: float = 0.1
    """Share of the sequences with everything in segment A (not `packed`)."""
    short: float = 0.05
    """Share of the sequences that aim at a random shorter length (not `packed`). With `sentences` they hold whole
    sentences, the fewest that reach that length."""
    short_length: int = 0
    """Largest length that short sequences aim at (`sentences` only); 0 means `data.length`, as in the paper. The
    smallest is 5, so 5 means a single sentence."""
    copies: float = 0.0
    """Share of the training sequences whose second segment becomes an altered copy of a part of the first (not
    `packed`)."""
    copies_share: float = 1.0
    """Share of the run, at its end, in steps or of its time budget, in which there are copies."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimConfig:
    lr: float = 5e-4
    """Peak learning rate (warm-up and decay multiply, so the peak reached is slightly lower)."""
    warmup_steps: int = 10_000
    """Steps over which the learning rate rises from 0, at most; exactly these where you set them."""
    warmup_share: float = 0.25
    """Share of the run that the warm-up takes at most, so that it fits a shorter run too. Setting `optim.warmup_steps`
    alone sets this to 1."""
    decay_steps: int = 0
    """Step at which the learning rate reaches 0; 0 means the end of the run."""
    decay_share: float = 1.0
    """Share of the schedule, at its end, over which the learning rate falls to 0; 1 is the paper's linear decay."""
    matrices: Literal["adamw", "muon", "normuon"] = "adamw"
    """What updates the matrices of the layers. `muon`: the gradient's average made orthogonal, at AdamW's usual size;
    everything else keeps AdamW. `normuon`: the same with rows of like sizes, one a neuron."""
    beta1: float = 0.9
    """Decay of the gradient average."""
    beta2: float = 0.999
    """Decay of the squared gradient average."""
    eps: float = 1e-6
    """Added to the root of the squared average."""
    weight_decay: float = 0.01
    """Decoupled weight decay; biases and norms are exempt."""
    clip: float = 1.0
    """Largest global gradient norm."""
    ema: float = 0.0
    """Decay of a running average of the weights, such as 0.999, which evaluation, export and fine-tuning use in place
    of the last weights; 0 means none. The mean of all weights so far until it is that long."""

    def warmup(self, total: int | None) -> int:
        """Steps of warm-up in a schedule of `total` steps; None while a time budget has not become steps yet."""
        end = self.decay_steps or total
        return self.warmup_steps if end is None else min(self.warmup_steps, int(self.warmup_share * end))


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    steps: int = 1_000_000
    """Optimizer steps."""
    algorithm: Literal["joint", "two-stage", "adversarial"] = "joint"
    """`joint`: generator and discriminator together. `two-stage`: the generator alone first, then the discriminator
    with the generator frozen. `adversarial`: the generator is rewarded for the discriminator's mistakes (REINFORCE)."""
    generator_steps: int = 0
    """Steps of the first of two stages; 0 means half of the run. Each stage has its own warm-up and decay."""
    start_from_generator: bool = True
    """Begin the second stage with the generator's weights (needs equal sizes); without it, with shared embeddings."""
    batch_size: int = 128
    """Sequences a step, over all processes."""
    batch_start: int = 0
    """Sequences a step at the run's beginning, which doubles until it is `train.batch_size`; 0 means that throughout.
    The learning rate stays what it is."""
    batch_share: float = 0.5
    """Share of the run, in steps or of its time budget, after which the batch is `train.batch_size`; each size before
    takes an equal part of it."""
    micro_batch: int = 0
    """Sequences a forward pass; 0 means the whole batch, in equal parts where it has more than 65,536 tokens."""
    max_minutes: float = 0.0
    """Time budget from the command's start, summed over resumes; 0 means none. Measured speed turns it into a step
    count, corrected as the run goes on, so that evaluations and saves fit in too."""
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """Compute precision; auto: bf16 where the hardware multiplies it natively. Master weights are always fp32."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Compile the step, with reference ops. `auto`: on a GPU without fused ops, in runs from 10,000 steps or 15 minutes
    on: shorter ones would be over before compiling pays."""
    capture: bool = True
    """On a GPU, capture the step in one CUDA graph."""
    kernels: Literal["auto", "plain"] = "auto"
    """`auto`: the fastest implementation of each op that this machine runs (`electra doctor` lists them). `plain`: the
    reference, plain PyTorch."""
    recompute: Literal["auto", "on", "off"] = "auto"
    """Save only the layers' inputs and run each layer once more in the backward pass: far less memory, a third more
    work. auto: where saved activations would fill more than half of the GPU."""
    deterministic: bool = False
    """Bitwise reproducible on a GPU too, at some cost in speed."""
    log_every: int = 100
    """Steps between log lines."""
    shard: bool = False
    """Several processes only: each keeps a part of the weights, gradients and Adam's averages (FSDP2), instead of all.
    For models that do not fit one device; the same numbers up to the order of additions. May be changed."""
    timeout_s: float = 600.0
    """Seconds without an answer after which a process counts as lost and the run ends (several processes only)."""

    @property
    def batch_sizes(self) -> tuple[tuple[int, float], ...]:
        """Sequences a step, each twice the one before, and the share of the run that is done when each ends."""
        sizes = [self.batch_start or self.batch_size]
        while sizes[-1] < self.batch_size:
            sizes.append(2 * sizes[-1])
        growing = len(sizes) - 1
        ends = [self.batch_share * (place + 1) / growing for place in range(growing)]
        return tuple(zip(sizes, [*ends, 1.0], strict=True))

    @property
    def stage_steps(self) -> tuple[int, ...]:
        """The steps of each stage of the run."""
        if self.algorithm != "two-stage":
            return (self.steps,)
        first = self.generator_steps or self.steps // 2
        return first, self.steps - first


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluateConfig:
    every: int = 100
    """Steps between held-out evaluations, at least; 0 means only at the end. Exactly these where you set them."""
    seconds: float = 12.0
    """Seconds between held-out evaluations, at least; they take 1 % of the time at most. Setting `evaluate.every` alone
    sets this to 0, which means that steps alone count."""
    sequences: int = 1024
    """Held-out sequences to evaluate on (or all, where there are fewer)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointConfig:
    every: int = 100
    """Steps between checkpoints, at least; one is always written at the end. Exactly these where you set them."""
    seconds: float = 60.0
    """Seconds between checkpoints, at least; saving takes 1 % of the time at most. Setting `checkpoint.every` alone
    sets this to 0, which means that steps alone count."""
    keep: int = 3
    """Checkpoints kept; older ones are removed after a newer one is safe."""
    same_kernels: bool = False
    """Refuse to resume where steps would execute in another way than before; otherwise that is said. May be changed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GuardConfig:
    max_skipped: int = 50
    """Non-finite steps since the last log line, or in a row, that stop the run as diverged."""
    max_rise: float = 2.0
    """The run has diverged when the smoothed loss exceeds its best by this factor (adversarial and rtd-15 may)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """A whole pre-training run."""

    preset: str = "small"
    """The preset that the other values started from."""
    seed: int = 0
    """Seed of every random draw."""
    track: Literal["none", "tensorboard", "wandb"] = "none"
    """Where the lines of metrics.jsonl are shown too. May be changed; `electra track` attaches at any time."""
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    generator: GeneratorConfig = field(default_factory=GeneratorConfig)
    masking: MaskingConfig = field(default_factory=MaskingConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    guard: GuardConfig = field(default_factory=GuardConfig)
