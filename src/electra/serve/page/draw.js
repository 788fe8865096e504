// Small pieces of the page: elements, shaded tokens, bars, curves. Text from anywhere enters as text nodes only.

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

export const percent = (value) => `${(100 * value).toFixed(value < 0.1 || value > 0.995 ? 1 : 0)} %`;

export function shaded(text, probability, ...classes) {
  const made = element("span", { class: ["shade", ...classes].join(" ") }, text);
  made.style.setProperty("--p", probability.toFixed(3));
  return made;
}

/** The text in order as shaded pieces; offsets count code points. */
export function shadedText(characters, tokens) {
  const pieces = [];
  let end = 0;
  for (const token of tokens) {
    const start = Math.max(end, token.start); // two tokens can come from one character
    if (start >= token.end) continue;
    if (start > end) pieces.push(characters.slice(end, start).join(""));
    const piece = characters.slice(start, token.end).join("");
    pieces.push(shaded(piece, token.probability, ...(token.flagged ? ["flagged"] : [])));
    end = token.end;
  }
  pieces.push(characters.slice(end).join(""));
  return pieces;
}

/** One token of a corrupted text: the original stands above a token that was replaced. */
export function corruptedToken(token) {
  const title = token.replaced
    ? `replaced, was “${token.original}”; the discriminator says ${percent(token.probability)} replaced`
    : `original; the discriminator says ${percent(token.probability)} replaced`;
  const piece = shaded(token.piece, token.probability, ...(token.replaced ? ["new"] : []));
  piece.title = title;
  if (!token.replaced) return piece;
  return element("ruby", {}, piece, element("rt", {}, token.original.replace(/^##/, "")));
}

export function bars(rows) {
  const list = element("ul", { class: "bars" });
  for (const { name, share, best } of rows) {
    const bar = element("span", { class: "bar" });
    bar.style.setProperty("--p", share.toFixed(4));
    list.append(element("li", {},
      element("span", { class: best ? "name best" : "name" }, name),
      element("span", { class: "track", "aria-hidden": "true" }, bar),
      element("span", { class: "share" }, percent(share))));
  }
  return list;
}

const SVG = "http://www.w3.org/2000/svg";
const [WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [320, 170, 44, 10, 10, 24];

function drawn(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

export function short(value) {
  if (value === 0) return "0";
  for (const [size, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= size) return `${+(value / size).toPrecision(3)}${letter}`;
  }
  return `${+value.toPrecision(3)}`;
}

function ticks(low, high, count) {
  const raw = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => one >= raw);
  const found = [];
  for (let at = Math.ceil(low / step); at * step <= high + step * 1e-6; at += 1) found.push(at * step);
  return found;
}

/** A figure with a line for each series: [{kind: "train" | "eval", name, points: [[step, value]]}]. */
export function curve(title, series, { low = null } = {}) {
  const all = series.flatMap((one) => one.points);
  const steps = all.map(([step]) => step);
  const values = all.map(([, value]) => value);
  let [least, most] = [low ?? Math.min(...values), Math.max(...values)];
  if (most - least < 1e-9) [least, most] = [least - Math.abs(least || 1) * 0.05, most + Math.abs(most || 1) * 0.05];
  const last = Math.max(...steps, 1);
  const x = (step) => LEFT + (step / last) * (WIDTH - LEFT - RIGHT);
  const y = (value) => TOP + (1 - (value - least) / (most - least)) * (HEIGHT - TOP - BOTTOM);
  const latest = series.map((one) => `${one.name} ${short(one.points.at(-1)[1])}`).join(", ");
  const picture = drawn("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title} at step ${last}: ${latest}` });
  for (const value of ticks(least, most, 4)) {
    picture.append(drawn("line", { class: "rule", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }));
    picture.append(drawn("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, short(value)));
  }
  for (const step of ticks(0, last, 3)) {
    picture.append(drawn("text", { x: Math.min(x(step), WIDTH - RIGHT - 8), y: HEIGHT - 6, "text-anchor": "middle" }, short(step)));
  }
  for (const { kind, points } of series) {
    const path = points.map(([step, value]) => `${x(step).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
    picture.append(drawn("polyline", { class: `line ${kind}`, points: path }));
    const [step, value] = points.at(-1);
    picture.append(drawn("circle", { class: kind, cx: x(step), cy: y(value), r: 3 }));
  }
  const keys = element("small", {});
  series.forEach((one, number) => {
    if (number) keys.append(", ");
    keys.append(element("span", { class: `key-${one.kind}` }, `${one.name} ${short(one.points.at(-1)[1])}`));
  });
  return element("figure", {}, element("figcaption", {}, title, keys), picture);
}
