// The table of documents and the document that is open.
if (at("data")) {
  const PAGE = 50; // rows of the table at once
  const FOLDED = 600; // characters of a question or the like from which it is folded
  const data = JSON.parse(at("data").textContent);
  const documents = data.documents.map((each, place) => ({ ...each, place }));
  const [table, article, browse] = [at("table"), at("document"), at("browse")];

  // -- The table -----------------------------------------------------------------------------------
  const judgement = (word) => make("span", { class: `verdict ${word.replace(" ", "-")}` }, word);
  const brief = (text) => make("div", { class: "brief" }, outside(text));
  const columns = [
    { name: "No.", value: (each) => each.place + 1, show: String, number: true },
    { name: "Document", value: (each) => each.id, head: true,
      show: (text, each) => make("a", { href: `#document-${each.place + 1}` }, outside(text || "(no id)")) },
    { name: "Gold", value: (each) => each.gold, show: brief },
    { name: "Answer", value: (each) => each.answer, show: brief },
    { name: "Verdict", value: (each) => each.verdict, show: judgement },
    ...data.metrics.map((name, i) => ({ name, value: (each) => each.scores[i], show: (value) => (100 * value).toFixed(1), number: true })),
    { name: "Confidence", value: (each) => each.confidence, show: percent, number: true },
    { name: "Words", value: (each) => each.words, show: (value) => value.toLocaleString("en"), number: true },
    { name: "Doubt", value: (each) => each.doubt, show: percent, number: true },
    { name: "Notes", value: (each) => each.notes.join("; ") || null, show: brief },
  ].filter((column) => documents.some((each) => known(column.value(each))));
  const collator = new Intl.Collator("en", { numeric: true });
  const filters = [
    { name: "All", test: () => true },
    { name: "Right", test: (each) => each.verdict === "right" },
    { name: "Wrong", test: (each) => each.verdict === "wrong" },
    { name: "No answer", test: (each) => each.verdict === "no answer" },
    { name: "Doubtful", test: (each) => known(each.doubt) },
    { name: "With notes", test: (each) => each.notes.length > 0 },
    { name: "With text", test: (each) => Boolean(each.parts) },
  ];
  const state = { sorted: columns[0], falling: false, filter: filters[0], needle: "", page: 0, open: null };
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
    state.page = 0;
    draw();
  }

  const folded = (text) => text.normalize("NFC").toLowerCase();
  const haystack = (each) => (each.haystack ??= folded([each.id, each.where, each.gold, each.answer, ...each.notes,
    ...(each.asks ?? []).map((ask) => ask[1]), ...(each.parts ?? []).map((part) => part[1])].join("\n")));

  function select() {
    found = documents.filter((each) => state.filter.test(each) && (!state.needle || haystack(each).includes(state.needle)));
    at("found").textContent = `${found.length.toLocaleString("en")} of ${count(documents.length, "document")}`;
    sort();
  }

  function draw() {
    const pages = Math.max(1, Math.ceil(found.length / PAGE));
    const rows = found.slice(state.page * PAGE, (state.page + 1) * PAGE);
    table.tBodies[0].replaceChildren(...rows.map((each) => make("tr", { "data-place": each.place },
      columns.map((column) => {
        const value = column.value(each);
        return make(column.head ? "th" : "td", { class: column.number && "number", scope: column.head && "row" },
          known(value) ? column.show(value, each) : "–");
      }))));
    current();
    at("page").textContent = `Page ${state.page + 1} of ${pages}`;
    at("back").disabled = state.page === 0;
    at("forth").disabled = state.page + 1 >= pages;
    at("page").parentElement.hidden = pages === 1;
  }

  function heads() {
    table.tHead.replaceChildren(make("tr", {}, columns.map((column) => {
      const head = make("th", { scope: "col", class: column.number && "number", "aria-sort": column === state.sorted && "ascending" },
        make("button", { type: "button", click: () => {
          state.falling = state.sorted === column && !state.falling;
          state.sorted = column;
          table.querySelectorAll("[aria-sort]").forEach((each) => each.removeAttribute("aria-sort"));
          head.setAttribute("aria-sort", state.falling ? "descending" : "ascending");
          sort();
        } }, outside(column.name)));
      return head;
    })));
  }

  function choices() {
    for (const filter of filters) {
      const number = documents.filter(filter.test).length;
      if (!number || (number === documents.length && filter !== filters[0])) continue;
      const change = () => { state.filter = filter; select(); };
      at("filters").append(make("label", {}, make("input", { type: "radio", name: "filter", checked: filter === state.filter, change }),
        make("span", {}, `${filter.name} `, make("span", { class: "small" }, number.toLocaleString("en")))));
    }
    at("filters").hidden = at("filters").querySelectorAll("input").length === 1;
  }

  // -- The document that is open -------------------------------------------------------------------
  const block = (text) => make("div", { class: "value", dir: "auto", lang: "" }, text || "(empty)");

  function ask([name, text]) {
    if (text.length <= FOLDED) return make("div", { class: "ask" }, make("h4", {}, name), block(text));
    return make("details", { class: "ask" },
      make("summary", {}, make("h4", {}, name), make("span", { class: "small" }, ` ${count(text.length, "character")}`)), block(text));
  }

  function sides(each) {
    return make("div", { class: "pair" }, [["Gold", each.gold], ["Answer", each.answer]].filter(([, text]) => known(text))
      .map(([name, text]) => make("div", { class: "side" },
        make("h4", {}, make("span", {}, name), name === "Answer" && each.verdict ? judgement(each.verdict) : null), block(text))));
  }

  function facts(each) {
    const shown = [
      each.where && outside(each.where),
      known(each.words) && count(each.words, "word"),
      known(each.confidence) && `confidence ${percent(each.confidence)}`,
      ...data.metrics.map((name, i) => known(each.scores[i]) && `${name} ${(100 * each.scores[i]).toFixed(1)}`),
    ].filter(Boolean);
    return make("ul", { class: "about small" }, shown.map((fact) => make("li", {}, fact)));
  }

  function body(each) {
    if (!each.parts) return [make("p", { class: "small" }, "Its text is not in this report.")];
    const kinds = ["gold", "answer", "passage"].filter((kind) => each.marks.some((mark) => mark.kinds.includes(kind)));
    const nodes = [];
    let end = 0;
    const gap = (start) => { if (start > end) nodes.push(make("span", { class: "gap" }, `${count(start - end, "character")} left out`)); };
    for (const [start, text] of each.parts) {
      gap(start);
      nodes.push(...marked(text, each.marks, start));
      end = start + [...text].length;
    }
    gap(each.characters);
    const legend = kinds.flatMap((kind) => [make("mark", { class: kind }, kind), " "]);
    return [make("h4", {}, "Text"), kinds.length ? make("p", { class: "legend small" }, "Marked: ", legend) : null, textBox(nodes)];
  }

  function open(place) {
    const each = documents[place];
    if (!each) return;
    state.open = each;
    reveal(each);
    const title = make("h3", { id: "document-title", tabindex: "-1" }, outside(each.id || "(no id)"));
    const doubt = known(each.doubt) ? [`The gold label is doubtful: ${percent(each.doubt)}`] : [];
    const notes = [...doubt, ...each.notes].map((note) => make("li", { dir: "auto" }, note));
    const order = found.indexOf(each);
    article.replaceChildren(
      make("div", { class: "row" },
        make("button", { type: "button", id: "previous", disabled: order <= 0, click: () => move(-1) }, "Previous"),
        make("button", { type: "button", id: "next", disabled: order + 1 >= found.length, click: () => move(1) }, "Next"),
        make("button", { type: "button", id: "close", click: close }, "Close")),
      title, facts(each),
      ...[notes.length ? make("ul", { class: "warnings", "aria-label": "Notes" }, notes) : null,
        ...(each.asks ?? []).map(ask), sides(each), ...body(each)].filter(known));
    article.hidden = false;
    browse.classList.add("open");
    article.scrollTop = 0;
    showFirstMark(article.querySelector(".text"));
    current();
    title.focus({ preventScroll: true });
    article.scrollIntoView({ block: "start" });
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

  function current() {
    for (const row of table.tBodies[0].rows) {
      const is = state.open && Number(row.dataset.place) === state.open.place;
      row.toggleAttribute("aria-current", is);
      if (!is) continue;
      row.setAttribute("aria-current", "true");
      const pane = table.parentElement;
      pane.scrollTop = Math.min(row.offsetTop - 40, Math.max(pane.scrollTop, row.offsetTop + row.offsetHeight - pane.clientHeight));
    }
  }

  function go(place) {
    history.replaceState(null, "", `#document-${place + 1}`);
    open(place);
  }

  function move(by) {
    const order = state.open ? found.indexOf(state.open) + by : by > 0 ? 0 : found.length - 1;
    if (found[order]) go(found[order].place);
  }

  function close() {
    if (!state.open) return;
    const { place } = state.open;
    state.open = null;
    article.hidden = true;
    browse.classList.remove("open");
    current();
    history.replaceState(null, "", "#documents");
    (table.querySelector(`tr[data-place="${place}"] a`) || at("search")).focus();
  }

  function follow() {
    const number = /^#document-(\d+)$/.exec(location.hash);
    if (number) open(Number(number[1]) - 1);
  }

  // -- Keys and the rest ---------------------------------------------------------------------------
  browse.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input")) return;
    const row = event.target.closest("tbody tr");
    const other = { ArrowDown: row?.nextElementSibling, ArrowUp: row?.previousElementSibling }[event.key];
    if (event.key === "j") move(1);
    else if (event.key === "k") move(-1);
    else if (event.key === "Escape") close();
    else if (other) other.querySelector("a").focus();
    else return;
    event.preventDefault();
  });
  table.tBodies[0].addEventListener("click", (event) => { // the whole row is its link
    const row = event.target.closest("tr");
    if (row && !event.target.closest("a") && !String(getSelection())) go(Number(row.dataset.place));
  });
  at("search").addEventListener("input", () => {
    state.needle = folded(at("search").value.trim());
    select();
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

  heads();
  choices();
  select();
  browse.hidden = false;
  follow();
}
