"use strict";
// Parts that all pages share. Text goes into a page as text: nothing here makes HTML of a string.
const at = (id) => document.getElementById(id);
const known = (value) => value !== undefined && value !== null;
const percent = (value) => `${Math.round(100 * value)}%`;
const count = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;

// A text in which characters that nobody sees are named, as ldt.report.html.visible has it.
const UNSEEN = /[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\u180e\u200b\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb\ufffe\uffff]/gu;
const visible = (text) => text.replace(UNSEEN, (each) => (each === "\f" ? "⟨page break⟩"
  : `⟨U+${each.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`));

function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (known(value) && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter(known).map((child) => (child instanceof Node ? child : visible(String(child)))));
  return element;
}
const outside = (text) => make("bdi", { lang: "" }, text); // of any language and direction
const hidden = (text) => make("span", { class: "hidden" }, text);

// Marks are {start, end, kinds, label, score}. Their places count characters as Python does;
// JavaScript counts those beyond the first plane twice.
function units(text, places) {
  const found = new Map();
  let [character, unit] = [0, 0];
  for (const place of [...new Set(places)].sort((a, b) => a - b)) {
    while (character < place && unit < text.length) {
      unit += text.codePointAt(unit) > 0xffff ? 2 : 1;
      character += 1;
    }
    found.set(place, unit);
  }
  return found;
}

// Labels that begin with "#3 " are of the third cluster: it has a colour, and a click on a mention
// goes on to the next one of it.
function hue(mark) {
  const number = /^#(\d+) /.exec(mark.label || "");
  return number ? `hue-${number[1] % 8}` : "";
}
function follow(event) {
  const here = event.currentTarget;
  const all = [...here.closest(".text").querySelectorAll("[data-cluster]")];
  const mine = all.filter((each) => each.dataset.cluster === here.dataset.cluster);
  for (const each of all) each.classList.toggle("followed", mine.includes(each));
  const next = mine[(mine.indexOf(here) + 1) % mine.length];
  next.scrollIntoView({ block: "center" });
  next.focus({ preventScroll: true });
}

// A text whose first character has the place `from`: what is marked is said where it begins and, to
// those who do not see it, where it ends.
function marked(text, marks, from = 0) {
  const length = [...text].length;
  const inside = marks.map((mark, number) => ({ ...mark, number, name: mark.label || mark.kinds.join(" and "),
    hue: hue(mark), low: Math.max(mark.start - from, 0), high: Math.min(mark.end - from, length) }))
    .filter((mark) => mark.low < mark.high).sort((a, b) => a.low - b.low || b.high - a.high);
  const edges = units(text, [0, length, ...inside.flatMap((mark) => [mark.low, mark.high])]);
  const cuts = [...edges.keys()];
  const nodes = [];
  let [here, next] = [[], 0];
  for (let i = 0; i + 1 < cuts.length; i += 1) {
    while (next < inside.length && inside[next].low === cuts[i]) {
      const mark = inside[next];
      const follows = mark.hue && { type: "button", "data-cluster": `${mark.kinds[0]} ${mark.label}`, click: follow };
      nodes.push(make(follows ? "button" : "span", { class: `tag ${mark.kinds.join(" ")} ${mark.hue}`, id: mark.start >= from && `mark-${mark.number}`, tabindex: follows ? "0" : "-1", ...follows },
        hidden(mark.label ? ` [${mark.kinds.join(" and ")}: ` : " ["), mark.name,
        known(mark.score) && mark.score <= 1 ? ` ${percent(mark.score)}` : "", hidden("] ")));
      here.push(mark);
      next += 1;
    }
    const words = visible(text.slice(edges.get(cuts[i]), edges.get(cuts[i + 1])));
    nodes.push([...new Set(here.flatMap((mark) => mark.kinds.map((kind) => `${kind} ${mark.hue}`)))].reduceRight((child, kind) => make("mark", { class: kind }, child), document.createTextNode(words)));
    for (const mark of here.filter((each) => each.high === cuts[i + 1])) nodes.push(hidden(` [end of ${mark.name}] `));
    here = here.filter((mark) => mark.high > cuts[i + 1]);
  }
  return nodes;
}

// The box of a document's text; it scrolls to the first mark once it is in the page.
function textBox(nodes) {
  return make("div", { class: "text", role: "group", tabindex: "0", "aria-label": "Text with its marks", dir: "auto", lang: "" }, nodes);
}
function showFirstMark(box) {
  const first = box?.querySelector(".tag");
  if (first) box.scrollTop = first.offsetTop - box.clientHeight / 4;
}
