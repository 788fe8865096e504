// What is wrong with the page, a line each. Colours are composited over what lies behind them, as the eye gets them: text
// needs a contrast of 4.5, large text and lines of charts 3 (WCAG 2.1, AA).
() => {
  const found = [];
  const say = (what, node) => found.push(what + ': ' + (node.outerHTML || String(node)).slice(0, 160));
  const all = (query) => [...document.querySelectorAll(query)];
  const visible = (node) => { const box = node.getBoundingClientRect(); return box.width > 0 && box.height > 0
    && getComputedStyle(node).visibility !== 'hidden'; };

  if (!document.documentElement.lang) say('the page has no language', document.documentElement);
  if (!document.title.trim()) say('the page has no title', document.documentElement);
  for (const [query, name] of [['main', 'main'], ['body > header', 'header'], ['body > footer', 'footer']])
    if (all(query).length !== 1) say('not exactly one landmark ' + name, document.body);
  for (const node of document.body.children)
    if (!node.matches('header, main, footer, nav, a.skip')) say('outside every landmark', node);
  for (const node of all('section')) if (!node.getAttribute('aria-labelledby')) say('section without a name', node);

  let before = 0;
  for (const node of all('h1, h2, h3, h4, h5, h6')) {
    const depth = Number(node.tagName[1]);
    if (depth > before + 1) say('heading skips from h' + before, node);
    if (!node.textContent.trim()) say('empty heading', node);
    before = depth;
  }
  if (all('h1').length !== 1) say('not exactly one h1', document.body);

  for (const node of all('svg')) if (node.getAttribute('role') !== 'img' || !node.getAttribute('aria-label')) say('picture without a name', node);
  for (const node of all('img')) if (!node.hasAttribute('alt')) say('picture without alt text', node);
  for (const node of all('a, button, summary, input, select, textarea, [role=region]')) {
    const name = node.getAttribute('aria-label') || node.textContent.trim() || (node.labels && node.labels.length);
    if (!name) say('control without a name', node);
  }
  for (const node of all('table')) {
    if (![...node.querySelectorAll('th')].every((cell) => cell.scope === 'col' || cell.scope === 'row')) say('header without scope', node);
    if (!node.querySelector('th')) say('table without headers', node);
    const widths = new Set([...node.rows].map((row) => row.cells.length));
    if (widths.size > 1) say('rows of several widths', node);
  }
  const ids = all('[id]').map((node) => node.id);
  for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) say('id twice: ' + id, document.getElementById(id));
  for (const node of all('a[href^="#"]')) if (!document.getElementById(node.getAttribute('href').slice(1))) say('link to nothing', node);
  for (const node of all('[aria-labelledby]')) if (!document.getElementById(node.getAttribute('aria-labelledby'))) say('named by nothing', node);

  const parse = (text) => {
    const numbers = (text.match(/-?[\d.]+(e-?\d+)?%?/g) || []).map((one) => one.endsWith('%') ? parseFloat(one) / 100 : Number(one));
    if (text.startsWith('rgb')) return [numbers[0], numbers[1], numbers[2], numbers.length > 3 ? numbers[3] : 1];
    if (text.startsWith('color(srgb')) return [...numbers.slice(0, 3).map((one) => 255 * one), numbers.length > 3 ? numbers[3] : 1];
    return null;
  };
  const over = (top, under) => [0, 1, 2].map((i) => top[i] * top[3] + under[i] * (1 - top[3])).concat(1);
  const behind = (node) => {
    const layers = [];
    for (let at = node; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour && colour[3] > 0) layers.push(colour);
      if (colour && colour[3] === 1) break;
    }
    return layers.reverse().reduce((under, top) => over(top, under), [255, 255, 255, 1]);
  };
  const light = (colour) => {
    const [r, g, b] = colour.slice(0, 3).map((one) => { const c = one / 255; return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (a, b) => { const [high, low] = [light(a), light(b)].sort((x, y) => y - x); return (high + 0.05) / (low + 0.05); };
  const opacity = (node) => { let value = 1; for (let at = node; at; at = at.parentElement) value *= Number(getComputedStyle(at).opacity); return value; };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text = walker.nextNode(); text; text = walker.nextNode()) {
    const node = text.parentElement;
    if (!text.data.trim() || !visible(node) || node.closest('.skip, style')) continue;
    const style = getComputedStyle(node);
    const colour = parse(node.closest('svg') ? style.fill : style.color);
    if (!colour) continue;
    const ground = behind(node), drawn = over([colour[0], colour[1], colour[2], colour[3] * opacity(node)], ground);
    const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    const ratio = contrast(drawn, ground);
    if (ratio < (large ? 3 : 4.5)) say('contrast ' + ratio.toFixed(2) + ' of "' + text.data.trim().slice(0, 30) + '"', node);
  }
  for (const node of all('svg path, svg use')) {
    const style = getComputedStyle(node), colour = parse(style.stroke);
    if (!colour || parseFloat(style.strokeWidth) < 1.5 || colour[3] === 0 || !visible(node)) continue;
    const ground = behind(node), ratio = contrast(over(colour, ground), ground);
    if (Number(style.strokeOpacity) === 1 && ratio < 3) say('contrast ' + ratio.toFixed(2) + ' of a line', node);
  }

  if (document.documentElement.scrollWidth > innerWidth) say('the page scrolls sideways: ' + document.documentElement.scrollWidth, document.body);
  const scrolls = (node) => { const style = getComputedStyle(node).overflowX; return style === 'auto' || style === 'scroll'; };
  for (const node of all('body *')) {
    if (node.scrollWidth > node.clientWidth + 1 && scrolls(node) && !(node.tabIndex >= 0)) say('scrolls, but not by keyboard', node);
    if (!visible(node) || node.closest('.skip, rp')) continue;
    let at = node; while (at && !scrolls(at)) at = at.parentElement;
    const box = node.getBoundingClientRect();
    if (!at && (box.right > innerWidth + 1 || box.left < -1)) say('clipped at the edge', node);
  }
  for (const node of all('svg text')) {
    const box = node.getBoundingClientRect(), frame = node.closest('figure').getBoundingClientRect();
    if (box.right > frame.right + 1 || box.left < frame.left - 1) say('text outside its figure', node);
  }
  return found;
}
