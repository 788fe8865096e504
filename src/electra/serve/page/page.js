import { bars, corruptedToken, curve, element, percent, shadedText, short } from "./draw.js";

const $ = (id) => document.getElementById(id);
const pause = (ms) => new Promise((done) => setTimeout(done, ms));
const EXAMPLE = "The chef cooked the meal, and we ate the cloud.";

const problems = new Map();

/** Show why there was no answer from an address, until there is one from it. */
function complain(address, reason) {
  if (reason) problems.set(address, reason);
  else problems.delete(address);
  const shown = [...problems.values()].at(-1) ?? "";
  if ($("problem").textContent !== shown) $("problem").textContent = shown;
  $("problem").hidden = !shown;
}

/** The JSON of an answer; asks again where the server says later. Null, and a line on the page, where there is none. */
async function ask(address, body) {
  const request = body === undefined ? {} : { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
  for (;;) {
    let response;
    try {
      response = await fetch(address, request);
    } catch {
      complain(address, "The server does not answer. Is electra serve still running?");
      return null;
    }
    if (response.status === 429) {
      await pause(1000 * Number(response.headers.get("retry-after") ?? 1));
      continue;
    }
    const found = await response.json().catch(() => ({ error: "The server gave no answer." }));
    complain(address, response.ok ? "" : found.error);
    return response.ok ? found : null;
  }
}

/** A function that computes and shows again after each change; while one answer is on its way, only the last change waits. */
function latest(work) {
  let busy = false;
  let again = false;
  return async () => {
    again = true;
    if (busy) return;
    busy = true;
    while (again) {
      again = false;
      await work();
    }
    busy = false;
  };
}

/** Says a line to screen readers once typing rests. */
function announcer(target) {
  let timer;
  return (line) => {
    clearTimeout(timer);
    timer = setTimeout(() => { if (target.textContent !== line) target.textContent = line; }, 350);
  };
}

function grow(area) {
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight + 2}px`;
}

function growing(area) {
  area.addEventListener("input", () => grow(area));
  addEventListener("resize", () => grow(area));
  grow(area);
}

// ---- Tokens as you type

/** The tokens of an older text where the new one still has them: nothing flickers while the answer is on its way. */
function carriedOver(before, after, tokens) {
  let head = 0;
  while (head < Math.min(before.length, after.length) && before[head] === after[head]) head += 1;
  let tail = 0;
  const most = Math.min(before.length, after.length) - head;
  while (tail < most && before[before.length - 1 - tail] === after[after.length - 1 - tail]) tail += 1;
  const shift = after.length - before.length;
  const later = tokens.filter((token) => token.start >= before.length - tail && token.start >= head);
  return [
    ...tokens.filter((token) => token.end <= head),
    ...later.map((token) => ({ ...token, start: token.start + shift, end: token.end + shift })),
  ];
}

function startDetect(verb) {
  const [area, mirror] = [$("text"), $("mirror")];
  const announce = announcer($("summary"));
  let [characters, tokens] = [[], []];
  const paint = () => mirror.replaceChildren(...shadedText(characters, tokens), "\u200b");
  const refresh = latest(async () => {
    const text = area.value;
    const found = await ask(`/api/${verb}`, { text });
    if (!found) return;
    const read = found.tokens.map((token) => (verb === "detect" ? token : surprise(token)));
    tokens = carriedOver(Array.from(text), Array.from(area.value), read);
    characters = Array.from(area.value);
    paint();
    announce(summary(read, verb, Array.from(text)));
    if ($("token-details").open) list(read, verb);
    else $("token-details").ontoggle = () => list(read, verb);
  });
  area.addEventListener("input", () => {
    const now = Array.from(area.value);
    tokens = carriedOver(characters, now, tokens);
    characters = now;
    paint();
    refresh();
  });
  if (verb === "score") {
    $("detect-title").textContent = "How likely is each token?";
    $("text-label").textContent = "Type a sentence: every token is shaded by how unlikely it is there";
    $("figure-title").textContent = "Log-probability";
    $("legend-low").textContent = "likely";
    $("legend-high").textContent = "unlikely";
    $("legend-flag").hidden = true;
  }
  area.value = EXAMPLE;
  $("detect").hidden = false;
  growing(area);
  characters = Array.from(area.value);
  paint();
  refresh();
}

/** A scored token with a shade: how unlikely it is. */
const surprise = (token) => ({ ...token, flagged: false, probability: 1 - Math.min(1, Math.exp(token.score)) });

function summary(tokens, verb, characters) {
  if (!tokens.length) return "";
  const count = `${tokens.length} ${tokens.length === 1 ? "token" : "tokens"}`;
  const named = (token) => `“${characters.slice(token.start, token.end).join("")}” ${percent(token.probability)}`;
  if (verb === "score") return `${count}, log-probability ${tokens.reduce((sum, token) => sum + token.score, 0).toFixed(1)}`;
  const sorted = [...tokens].sort((a, b) => b.probability - a.probability);
  const flagged = sorted.filter((token) => token.flagged);
  if (!flagged.length) return `${count}. None looks replaced; the highest is ${named(sorted[0])}.`;
  const more = flagged.length > 4 ? `, and ${flagged.length - 4} more` : "";
  return `${count}. Looks replaced: ${flagged.slice(0, 4).map(named).join(", ")}${more}.`;
}

function list(tokens, verb) {
  $("tokens").replaceChildren(...tokens.map((token) => element("tr", {},
    element("td", {}, token.token),
    element("td", { class: "n" }, verb === "score" ? token.score.toFixed(3) : percent(token.probability)))));
}

// ---- The generator's tokens

function startReplace() {
  const button = $("sample");
  let seed = Math.floor(Math.random() * 2 ** 30);
  $("rate").addEventListener("input", () => { $("rate-value").textContent = `${$("rate").value} %`; });
  button.addEventListener("click", async () => {
    if (button.getAttribute("aria-busy") === "true") return;
    button.setAttribute("aria-busy", "true");
    seed += 1;
    const found = await ask("/api/replace", { text: $("text").value, rate: Number($("rate").value) / 100, seed });
    button.removeAttribute("aria-busy");
    if (!found) return;
    $("replaced").replaceChildren(...found.tokens.flatMap((token) => [token.gap, corruptedToken(token)]));
    $("replaced").hidden = $("replace-legend").hidden = !found.tokens.length;
    $("replace-summary").textContent = outcome(found.tokens);
    button.textContent = "Replace again";
  });
  $("replace").hidden = false;
}

function outcome(tokens) {
  const asked = tokens.filter((token) => token.masked).length;
  const replaced = tokens.filter((token) => token.replaced);
  const found = replaced.filter((token) => token.flagged).length;
  const wrong = tokens.filter((token) => token.flagged && !token.replaced).length;
  if (!asked) return "There is no token to replace.";
  const same = asked - replaced.length;
  const guessed = same ? ` It guessed ${same} right.` : "";
  if (!replaced.length) return `The generator guessed all ${asked} masked tokens right: nothing was replaced.`;
  const alarms = wrong ? `, and flags ${wrong} that ${wrong === 1 ? "was" : "were"} not replaced` : "";
  const suspects = [...tokens].sort((a, b) => b.probability - a.probability).slice(0, replaced.length);
  const among = suspects.filter((token) => token.replaced).length;
  const suspicion = replaced.length === 1
    ? `The token that it suspects most is ${among ? "the replaced one" : "another one"}.`
    : `Of the ${replaced.length} tokens that it suspects most, ${among} ${among === 1 ? "was" : "were"} replaced.`;
  const flags = `The discriminator flags ${found} of ${replaced.length === 1 ? "it" : "them"}${alarms}.`.replace("flags 1 of it", "flags it").replace("flags 0 of it", "does not flag it");
  return `The generator replaced ${replaced.length} of ${tokens.length} tokens.${guessed} ${flags} ${suspicion}`;
}

// ---- A fine-tuned model

const FIELDS = {
  span: [["question", "Question", "text"], ["context", "Passage", "area"]],
  tag: [["text", "Sentence", "area"]],
  pair: [["text", "First text", "area"], ["pair", "Second text", "area"]],
  one: [["text", "Text", "area"]],
};

function startPredict(task) {
  const plain = task.pairs ? "pair" : "one";
  const fields = FIELDS[task.kind] ?? FIELDS[plain];
  const inputs = {};
  for (const [name, label, kind] of fields) {
    const input = kind === "area" ? element("textarea", { id: `row-${name}`, rows: "3" }) : element("input", { id: `row-${name}`, type: "text", autocomplete: "off" });
    inputs[name] = input;
    $("fields").append(element("div", { class: "field" }, element("label", { for: `row-${name}` }, label), input));
  }
  const titles = { span: "Ask about a passage", tag: "Tag a sentence", regress: `Predict ${task.title}`, pairs: "Compare two texts" };
  $("predict-title").textContent = titles[task.kind] ?? `Classify: ${task.title}`;
  const refresh = latest(async () => {
    const values = Object.fromEntries(Object.entries(inputs).map(([name, input]) => [name, input.value]));
    if (Object.values(values).some((value) => !value.trim())) return $("prediction").replaceChildren();
    const row = task.kind === "tag" ? { words: values.text.split(/\s+/).filter(Boolean) } : values;
    const found = await ask("/api/predict", { rows: [row] });
    if (found) $("prediction").replaceChildren(...shown(found.predictions[0], task, values), ...unread(found.lost_tokens[0], task));
    return null;
  });
  $("predict").hidden = false;
  for (const input of Object.values(inputs)) {
    if (input.localName === "textarea") growing(input);
    input.addEventListener("input", refresh);
  }
}

function shown(found, task, values) {
  if (task.kind === "regress") return [element("p", { class: "answer" }, String(+found.value.toPrecision(4)))];
  if (task.kind === "pairs") return [element("p", { class: "answer" }, `Cosine ${found.cosine.toFixed(3)}`)];
  if (task.kind === "tag") return [tagged(found)];
  if (task.kind === "span") return answered(found, values.context);
  const chosen = new Set(found.labels ?? [found.label]);
  const rows = Object.entries(found.probabilities).map(([name, share]) => ({ name, share, best: chosen.has(name) }));
  const title = [...chosen].join(", ") || "none of the labels";
  return [element("p", { class: "answer" }, title), bars(rows.sort((a, b) => b.share - a.share).slice(0, 20))];
}

/** A line where the model did not read everything. */
function unread(count, task) {
  if (!count) return [];
  const where = task.kind === "span" ? " of the question" : task.kind === "pairs" ? " of the texts" : task.pairs ? " of the longer text" : "";
  const lost = count === 1 ? `The last token${where} was not read` : `The last ${count.toLocaleString("en")} tokens${where} were not read`;
  const reason = task.kind === "span" ? "it is longer than the model takes" : `the model takes ${task.length} with [CLS] and [SEP]`;
  return [element("p", { class: "summary cut" }, `${lost}: ${reason}.`)];
}

function tagged(found) {
  const made = element("p", { class: "sheet text" });
  found.words.forEach((word, at) => {
    if (at) made.append(" ");
    const probability = found.probabilities?.[at];
    const ruby = found.tags[at] === "O" ? word : element("ruby", {}, element("span", { class: "tagged" }, word), element("rt", { class: "tag" }, found.tags[at]));
    if (ruby !== word && probability !== undefined) ruby.title = percent(probability);
    made.append(ruby);
  });
  return made;
}

function answered(found, context) {
  if (!found.answer) return [element("p", { class: "answer" }, "No answer in the passage")];
  const characters = Array.from(context);
  const part = (from, to) => characters.slice(from, to).join("");
  const others = (found.n_best ?? []).slice(1, 5).map((one) => element("li", {}, `${one.text} (${percent(Math.exp(one.score))})`));
  const passage = element("p", { class: "sheet text" },
    part(0, found.start), element("mark", {}, part(found.start, found.end)), part(found.end));
  const rest = others.length ? [element("details", {}, element("summary", {}, "Other answers"), element("ol", {}, ...others))] : [];
  return [element("p", { class: "answer" }, found.answer), passage, ...rest];
}

// ---- A run as it trains

const CHARTS = [
  ["RTD loss", ["train/rtd_loss", "eval/rtd_loss"], {}],
  ["MLM loss", ["train/mlm_loss", "eval/mlm_loss"], {}],
  ["Loss of the main network", ["train/main_loss", "eval/main_loss"], {}],
  ["Detection AUC", ["eval/rtd_auc"], {}],
  ["Tokens a second", ["perf/tokens_per_s"], { low: 0 }],
];

async function followRun() {
  for (;;) {
    const found = document.hidden ? null : await ask("/api/run");
    if (found) showRun(found);
    await pause(found && found.quiet_s > 60 ? 10_000 : 2_000);
  }
}

function showRun(found) {
  const steps = found.total_steps ? `step ${found.step.toLocaleString("en")} of ${found.total_steps.toLocaleString("en")}` : `step ${found.step.toLocaleString("en")}`;
  const ended = found.total_steps && found.step >= found.total_steps;
  const silent = found.quiet_s > 60 ? `; its last line is ${age(found.quiet_s)} old` : "";
  const state = ended ? `Done: ${steps}.` : `At ${steps}${silent}.`;
  if ($("run-state").textContent !== state) $("run-state").textContent = state;
  $("run-progress").hidden = !found.total_steps;
  $("run-progress").value = found.total_steps ? found.step / found.total_steps : 0;
  const figures = [];
  for (const [title, names, options] of CHARTS) {
    const series = names.filter((name) => found.curves[name]?.length).map((name) => ({
      kind: name.startsWith("eval/") ? "eval" : "train",
      name: name.startsWith("eval/") ? "held-out" : name.startsWith("perf/") ? "now" : "training",
      points: found.curves[name],
    }));
    if (series.length) figures.push(curve(title, series, options));
  }
  $("charts").replaceChildren(...figures);
  $("run-sample").hidden = !found.sample;
  if (found.sample) showSample(found.sample);
  $("run").hidden = false;
}

function age(seconds) {
  const [size, unit] = [[86400, "day"], [3600, "hour"], [60, "minute"]].find(([one]) => seconds >= one) ?? [60, "minute"];
  const count = Math.round(seconds / size);
  return `${count} ${unit}${count === 1 ? "" : "s"}`;
}

function showSample(sample) {
  $("sample-title").textContent = `A held-out sequence at step ${sample.step.toLocaleString("en")}`;
  const read = sample.replaced.length ? sample.replaced : sample.masked;
  const pieces = [];
  read.forEach((entry, at) => {
    if (entry === "[CLS]") return;
    const glued = sample.spaced ? !entry.startsWith(" ") : /^##./.test(entry) || /^[.,;:!?)\]}%]$/.test(entry);
    const token = {
      original: sample.original[at], piece: entry === "[SEP]" ? "¶" : sample.spaced ? entry.trimStart() : entry.replace(/^##(?=.)/, ""),
      replaced: sample.replaced.length > 0 && entry !== sample.original[at], probability: sample.probabilities[at] ?? 0,
    };
    pieces.push(glued || !pieces.length ? "" : " ", corruptedToken(token));
  });
  $("sample-text").replaceChildren(...pieces);
}

// ---- Start

function describe(model) {
  document.title = `${model.name} · Electra`;
  $("name").textContent = model.name;
  const facts = [model.task ? `fine-tuned on ${model.task.title}` : "pre-trained"];
  if (model.layers) facts.push(`${model.layers} layers of width ${model.width}`, `${short(model.parameters)} parameters`);
  if (model.step !== null) facts.push(`step ${model.step.toLocaleString("en")}`);
  $("facts").textContent = model.ready ? facts.join(" · ") : "waiting for the first checkpoint";
}

async function start() {
  let model = await ask("/api/model");
  if (!model) return;
  describe(model);
  if (model.run) followRun();
  while (!model?.ready) {
    await pause(3000);
    model = await ask("/api/model");
  }
  describe(model);
  if (model.task) startPredict(model.task);
  if (model.verbs.includes("detect")) startDetect("detect");
  else if (model.verbs.includes("score")) startDetect("score");
  if (model.verbs.includes("replace")) startReplace();
  if (!model.run) return;
  for (;;) { // a newer checkpoint may be served by now
    await pause(10_000);
    const now = await ask("/api/model");
    if (now?.ready) describe(now);
  }
}

start();
