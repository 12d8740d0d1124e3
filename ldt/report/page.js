"use strict";
// The table of documents and the document that is open. All text goes into the page as text:
// nothing here makes HTML of a string. What cannot be seen in a text was made visible before.
(() => {
  const PAGE = 50; // rows of the table at once
  const STEP = 20000; // characters that one press unfolds: a line of megabytes takes its time
  const FOLDED = 600; // characters of a question or the like from which it is folded
  const data = JSON.parse(document.getElementById("data").textContent);
  const documents = data.documents;
  const at = (id) => document.getElementById(id);
  const table = at("table");
  const article = at("document");
  const browse = at("browse");
  const count = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
  const percent = (value) => `${Math.round(100 * value)}%`;

  function make(tag, attributes, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (typeof value === "function") element.addEventListener(name, value);
      else if (value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
    }
    element.append(...children.filter((child) => child !== undefined && child !== null));
    return element;
  }
  const outside = (text) => make("bdi", { lang: "" }, text); // a text of any language and direction
  const hidden = (text) => make("span", { class: "hidden" }, text);

  // -- The table -----------------------------------------------------------------------------------
  const verdict = (each) => each.verdict;
  const judgement = (word) => make("span", { class: `verdict ${word.replace(" ", "-")}` }, word);
  const columns = [
    { name: "No.", value: (each) => each.place + 1, number: true },
    { name: "Document", value: (each) => each.id, head: true },
    { name: "Gold", value: (each) => each.gold },
    { name: "Answer", value: (each) => each.answer },
    { name: "Verdict", value: verdict, verdict: true },
    ...data.metrics.map((name, i) => ({
      name, value: (each) => each.scores[i], text: (value) => (100 * value).toFixed(1), number: true,
    })),
    { name: "Confidence", value: (each) => each.confidence, text: percent, number: true },
    { name: "Words", value: (each) => each.words, text: (value) => value.toLocaleString("en"), number: true },
    { name: "Doubt", value: (each) => each.doubt, text: percent, number: true },
    { name: "Notes", value: (each) => each.notes.join("; ") || null },
  ];
  documents.forEach((each, place) => { each.place = place; });
  const known = (value) => value !== undefined && value !== null;
  const shown = columns.filter((column) => documents.some((each) => known(column.value(each))));
  const collator = new Intl.Collator("en", { numeric: true });
  const filters = [
    { name: "All", test: () => true },
    { name: "Right", test: (each) => each.verdict === "right" },
    { name: "Wrong", test: (each) => each.verdict === "wrong" },
    { name: "No answer", test: (each) => each.verdict === "no answer" },
    { name: "Doubtful", test: (each) => known(each.doubt) },
    { name: "With notes", test: (each) => each.notes.length > 0 },
  ];
  const state = { sorted: shown[0], falling: false, filter: filters[0], needle: "", page: 0, open: null };
  let found = documents;

  function sort() {
    const { value } = state.sorted;
    const sign = state.falling ? -1 : 1;
    found.sort((left, right) => {
      const [a, b] = [value(left), value(right)];
      if (!known(a) || !known(b)) return known(b) - known(a) || left.place - right.place; // none: last
      const order = typeof a === "number" ? a - b : collator.compare(a, b);
      return sign * order || left.place - right.place;
    });
  }

  function select() {
    found = documents.filter((each) =>
      state.filter.test(each) && (!state.needle || each.haystack.includes(state.needle)));
    sort();
    state.page = 0;
    at("found").textContent = `${found.length.toLocaleString("en")} of ${count(documents.length, "document")}`;
    draw();
  }

  function cell(column, each) {
    const value = column.value(each);
    if (column.head) {
      const link = make("a", { href: `#document-${each.place + 1}` }, outside(value || "(no id)"));
      return make("th", { scope: "row" }, link);
    }
    if (!known(value)) return make("td", { class: column.number && "number" }, "–");
    if (column.verdict) return make("td", {}, judgement(value));
    if (column.number) return make("td", { class: "number" }, column.text ? column.text(value) : String(value));
    return make("td", {}, make("div", { class: "brief" }, outside(value)));
  }

  function draw() {
    const pages = Math.max(1, Math.ceil(found.length / PAGE));
    const first = state.page * PAGE;
    table.tBodies[0].replaceChildren(...found.slice(first, first + PAGE).map((each) =>
      make("tr", { "data-place": each.place, "aria-current": each === state.open && "true" },
        ...shown.map((column) => cell(column, each)))));
    at("page").textContent = `Page ${state.page + 1} of ${pages}`;
    at("back").disabled = state.page === 0;
    at("forth").disabled = state.page + 1 >= pages;
    document.querySelector(".pager").hidden = pages === 1;
  }

  function heads() {
    table.tHead.replaceChildren(make("tr", {}, ...shown.map((column) => {
      const button = make("button", { type: "button", click: () => {
        state.falling = state.sorted === column && !state.falling;
        state.sorted = column;
        for (const head of table.tHead.rows[0].cells) head.removeAttribute("aria-sort");
        button.parentElement.setAttribute("aria-sort", state.falling ? "descending" : "ascending");
        sort();
        state.page = 0;
        draw();
      } }, make("bdi", {}, column.name));
      return make("th", { scope: "col", class: column.number && "number",
        "aria-sort": column === state.sorted && "ascending" }, button);
    })));
  }

  function choices() {
    for (const filter of filters) {
      const number = documents.filter(filter.test).length;
      if (!number && filter !== filters[0]) continue;
      const input = make("input", { type: "radio", name: "filter", checked: filter === state.filter,
        change: () => { state.filter = filter; select(); } });
      at("filters").append(make("label", {}, input,
        make("span", {}, `${filter.name} `, make("span", { class: "small" }, number.toLocaleString("en")))));
    }
    at("filters").hidden = at("filters").querySelectorAll("input").length === 1;
  }

  // -- Texts ---------------------------------------------------------------------------------------
  async function unpacked(each) {
    const bytes = Uint8Array.from(atob(each.packed), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return JSON.parse(await new Response(stream).text());
  }

  const folded = (text) => text.normalize("NFC").toLowerCase();

  let reading; // done once: what is searched in each document

  async function read(each) {
    const texts = await unpacked(each).catch(() => ({ asks: [] }));
    const pieces = (texts.parts || []).flatMap((part) => Array.isArray(part) ? [part[0]]
      : part.pieces ? part.pieces.map((piece) => piece[0]) : ["\n"]);
    each.haystack = folded([each.id, each.where, texts.gold || each.gold, texts.answer || each.answer,
      ...each.notes, ...texts.asks.map((ask) => ask[1]), pieces.join("")].join("\n"));
  }

  async function search() {
    const needle = folded(at("search").value.trim());
    if (needle) {
      at("found").textContent = "Searching …";
      reading ||= Promise.all(documents.map(read));
      await reading;
    }
    if (needle !== folded(at("search").value.trim())) return; // typed on meanwhile
    state.needle = needle;
    select();
  }

  function kindsOf(mark) {
    return mark.kinds.join(" and ");
  }

  function tag(mark) {
    const words = [mark.label || kindsOf(mark), known(mark.score) ? percent(mark.score) : ""].filter(Boolean);
    return make("span", { class: `tag ${mark.kinds.join(" ")}` },
      hidden(mark.label ? ` [${kindsOf(mark)}: ` : " ["), words.join(" "), hidden("] "));
  }

  // Pieces of a text as elements: within each mark it is in, what is marked is said where it begins
  // and, to those who do not see it, where it ends.
  function written(pieces, marks, told) {
    return pieces.flatMap(([text, inside], i) => {
      const next = pieces[i + 1] ? pieces[i + 1][1] : [];
      const tags = inside.filter((j) => !told.has(j));
      tags.forEach((j) => told.add(j));
      const ends = inside.filter((j) => !next.includes(j) && pieces[i + 1]);
      const content = inside.reduceRight((child, j) =>
        marks[j].kinds.reduceRight((inner, kind) => make("mark", { class: kind }, inner), child),
      document.createTextNode(text));
      return [...tags.map((j) => tag(marks[j])), content,
        ...ends.map((j) => hidden(` [end of ${marks[j].label || kindsOf(marks[j])}] `))];
    });
  }

  function taken(pieces, most) { // the first pieces, of so many characters
    const first = [];
    for (let left = most; pieces.length && left > 0;) {
      const [text, inside] = pieces[0];
      let end = Math.min(left, text.length);
      const code = text.charCodeAt(end - 1);
      if (end < text.length && code >= 0xd800 && code < 0xdc00) end += 1; // not inside a character
      first.push([text.slice(0, end), inside]);
      if (end < text.length) pieces[0] = [text.slice(end), inside];
      else pieces.shift();
      left -= end;
    }
    return first;
  }

  function fold(part, marks, told) {
    const more = part.marks ? ` with ${count(part.marks, "mark")}` : "";
    const left = (number) => `${count(number, "character")}${more}`;
    if (!part.pieces) return make("span", { class: "fold" }, `${left(part.count)} left out`);
    const pieces = part.pieces.slice();
    const rest = () => pieces.reduce((sum, piece) => sum + piece[0].length, 0);
    const words = () => rest() > STEP ? `Show the next ${STEP.toLocaleString("en")} of ${left(rest())}` : `Show ${left(rest())}`;
    const button = make("button", { type: "button", click: () => {
      const added = make("span", { tabindex: "-1" }, ...written(taken(pieces, STEP), marks, told));
      around.before(added);
      if (pieces.length) {
        button.textContent = words();
        around.dataset.left = left(rest());
      } else {
        around.remove();
        added.focus({ preventScroll: true });
      }
    } }, words());
    const around = make("span", { class: "fold", "data-left": left(rest()) }, button);
    return around;
  }

  function legend(marks) {
    const kinds = ["gold", "answer", "passage"].filter((kind) => marks.some((mark) => mark.kinds.includes(kind)));
    return make("p", { class: "legend small" }, "Marked: ", ...kinds.flatMap((kind) =>
      [make("mark", { class: kind }, kind), " "]));
  }

  function body(texts) {
    if (!texts.parts) return [make("p", { class: "small" }, "Its text is not in this report.")];
    const told = new Set();
    const marks = texts.marks || [];
    const block = make("div", { class: "text", dir: "auto", lang: "" });
    let run = [];
    const flush = () => { block.append(...written(run, marks, told)); run = []; };
    for (const part of texts.parts) {
      if (Array.isArray(part)) run.push(part);
      else { flush(); block.append(fold(part, marks, told)); }
    }
    flush();
    return [make("h4", {}, "Text"), marks.length ? legend(marks) : null, block];
  }

  function ask([name, text]) {
    const block = () => make("div", { class: "value", dir: "auto", lang: "" }, text);
    if (text.length <= FOLDED) return make("div", { class: "ask" }, make("h4", {}, name), block());
    return make("details", { class: "ask" },
      make("summary", {}, make("h4", {}, name), make("span", { class: "small" }, ` ${count(text.length, "character")}`)), block());
  }

  function answers(each, texts) {
    const beside = [["Gold", texts.gold, ""], ["Answer", texts.answer, verdict(each)]];
    return make("div", { class: "pair" }, ...beside.filter(([, text]) => known(text)).map(([name, text, judged]) =>
      make("div", { class: `side ${name.toLowerCase()}` },
        make("h4", {}, make("span", {}, name), judged ? judgement(judged) : null),
        make("div", { class: "value", dir: "auto", lang: "" }, text || "(empty)"))));
  }

  function about(each) {
    const facts = [
      each.where && outside(each.where),
      known(each.words) && count(each.words, "word"),
      known(each.confidence) && `confidence ${percent(each.confidence)}`,
      ...data.metrics.map((name, i) => known(each.scores[i]) && `${name} ${(100 * each.scores[i]).toFixed(1)}`),
    ].filter(Boolean);
    return make("ul", { class: "about small" }, ...facts.map((fact) => make("li", {}, fact)));
  }

  async function open(place, focused) {
    const each = documents[place];
    if (!each) return;
    state.open = each;
    reveal(each);
    const texts = await unpacked(each).catch(() => null);
    if (state.open !== each) return; // another one was opened meanwhile
    const title = make("h3", { id: "document-title", tabindex: "-1" }, outside(each.id || "(no id)"));
    const notes = [...each.notes];
    if (known(each.doubt)) notes.unshift(`The gold label is doubtful: ${percent(each.doubt)}`);
    article.replaceChildren(
      make("div", { class: "bar" },
        make("button", { type: "button", id: "previous", click: () => move(-1) }, "Previous"),
        make("button", { type: "button", id: "next", click: () => move(1) }, "Next"),
        make("button", { type: "button", id: "close", click: close }, "Close")),
      title, about(each),
      ...(notes.length ? [make("ul", { class: "warnings", "aria-label": "Notes" }, ...notes.map((note) => make("li", { dir: "auto" }, note)))] : []),
      ...(texts ? [...texts.asks.map(ask), answers(each, texts), ...body(texts)].filter(Boolean)
        : [answers(each, each), make("p", {}, "This browser is too old to unpack the text.")]));
    article.hidden = false;
    browse.classList.add("open");
    article.scrollTop = 0;
    const order = found.indexOf(each);
    at("previous").disabled = order <= 0;
    at("next").disabled = order < 0 || order + 1 >= found.length;
    mark(each);
    if (focused) {
      title.focus({ preventScroll: true });
      article.scrollIntoView({ block: "start" });
    }
  }

  function reveal(each) { // on the page of the table that has it; with all documents if need be
    if (!found.includes(each)) {
      state.filter = filters[0];
      state.needle = at("search").value = "";
      at("filters").querySelector("input").checked = true;
      select();
    }
    const page = Math.floor(found.indexOf(each) / PAGE);
    if (page !== state.page) {
      state.page = page;
      draw();
    }
  }

  function mark(each) {
    for (const row of table.tBodies[0].rows) {
      if (each && Number(row.dataset.place) === each.place) {
        row.setAttribute("aria-current", "true");
        const pane = table.parentElement;
        const [box, inside] = [row.getBoundingClientRect(), pane.getBoundingClientRect()];
        if (box.bottom > inside.bottom) pane.scrollTop += box.bottom - inside.bottom;
        if (box.top < inside.top + 40) pane.scrollTop -= inside.top + 40 - box.top; // 40: the heads
      } else row.removeAttribute("aria-current");
    }
  }

  function go(place) {
    history.replaceState(null, "", `#document-${place + 1}`);
    open(place, true);
  }

  function move(by) {
    const order = state.open ? found.indexOf(state.open) + by : by > 0 ? 0 : found.length - 1;
    if (found[order]) go(found[order].place);
  }

  function close() {
    const each = state.open;
    if (!each) return;
    state.open = null;
    article.hidden = true;
    browse.classList.remove("open");
    mark(null);
    history.replaceState(null, "", "#documents");
    const row = table.querySelector(`tr[data-place="${each.place}"] a`);
    (row || at("search")).focus();
  }

  function follow() {
    const number = /^#document-(\d+)$/.exec(location.hash);
    if (number) open(Number(number[1]) - 1, true);
  }

  // -- Keys and the rest ---------------------------------------------------------------------------
  browse.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input")) return;
    const step = { j: 1, k: -1 }[event.key];
    if (step) move(step);
    else if (event.key === "Escape") close();
    else if (event.target.closest("tbody") && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
      const row = event.target.closest("tr");
      const other = event.key === "ArrowDown" ? row.nextElementSibling : row.previousElementSibling;
      if (other) other.querySelector("a").focus();
    } else return;
    event.preventDefault();
  });
  table.tBodies[0].addEventListener("click", (event) => { // the whole row is its link
    const row = event.target.closest("tr");
    if (row && !event.target.closest("a") && !String(getSelection())) go(Number(row.dataset.place));
  });
  let typing;
  at("search").addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(search, 150);
  });
  for (const [id, by] of [["back", -1], ["forth", 1]]) {
    at(id).addEventListener("click", () => {
      state.page += by;
      draw();
      table.parentElement.scrollTop = 0;
    });
  }
  addEventListener("hashchange", follow);
  // On a link to the document that is open already the hash does not change.
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#document-']");
    if (link && link.hash === location.hash) follow();
  });
  addEventListener("beforeprint", () => {
    document.querySelectorAll("details.ask").forEach((each) => { each.open = true; });
  });

  // The tab key stops at what scrolls, and only at that.
  const sizes = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      const pane = target.closest(".scroll");
      const scrolls = pane.scrollWidth > pane.clientWidth || pane.scrollHeight > pane.clientHeight;
      pane.tabIndex = scrolls ? 0 : -1;
    }
  });
  document.querySelectorAll(".scroll, .scroll > table").forEach((each) => sizes.observe(each));

  heads();
  choices();
  select();
  browse.hidden = false;
  follow();
})();
