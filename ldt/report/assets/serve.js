// The form that asks the server, and its answer.
const MOST = 300; // rows and marks that are shown; the JSON has all
const QUESTION = { name: "question", label: "Question" };
const TASKS = { // route, field of the text or of its lines, further fields, passages, what a name that says little is called
  classification: { route: "answer", text: "text", passages: true },
  coreference: { route: "coreference", text: "text" },
  embedding: { route: "answer", text: "text" },
  evidence_classification: { route: "answer", text: "text", asked: [{ name: "hypothesis", label: "Hypothesis" }] },
  multiple_choice: { route: "rank", text: "context", passages: true, asked: [QUESTION, { name: "choices", label: "Choices, one a line", list: true }] },
  reranking: { route: "rerank", text: "texts", lines: true, also: { return_text: true }, asked: [{ name: "query", label: "Query" }] },
  squad: { route: "answer", text: "context", passages: true, asked: [QUESTION], title: "Question answering" },
  summarization: { route: "summarize", text: "text", asked: [{ name: "question", label: "Question, if there is one", free: true }] },
  token_classification: { route: "entities", text: "text" },
  triviaqa: { route: "answer", text: "context", passages: true, asked: [QUESTION], title: "Question answering" },
  wikihop: { route: "rank", text: "supports", passages: true, title: "Ranking of candidates",
    asked: [{ name: "query", label: "Query" }, { name: "candidates", label: "Candidates, one a line", list: true }] },
};
const RECORD = { route: "answer", asked: [] }; // of other tasks documents are records in JSON
let task = null; // null until the server has said what its model is
let waiting = null;

const isShare = (value) => typeof value === "number" && value >= 0 && value <= 1;
const lines = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);
const figure = (value) => (isShare(value) ? `${(100 * value).toFixed(1)} %` : typeof value === "number" ? value.toPrecision(3) : String(value));

// -- asking ----------------------------------------------------------------------------------------
async function call(path, body, signal) {
  const headers = body === undefined ? {} : { "content-type": "application/json" };
  if (at("key").value) headers.authorization = `Bearer ${at("key").value}`;
  const reply = await fetch(path, { method: body === undefined ? "GET" : "POST", headers, body: body && JSON.stringify(body), signal });
  const text = await reply.text();
  let value = null;
  try { value = JSON.parse(text); } catch { /* the answer of a proxy */ }
  if (reply.ok) return value;
  if (reply.status === 401 || reply.status === 403) at("key-label").hidden = false;
  const words = value?.error ?? (text.slice(0, 500) || reply.statusText);
  const error = new Error(reply.status === 401 ? "The server wants its key." : String(words));
  error.status = reply.status;
  throw error;
}

async function begin() {
  try {
    describe(await call("info"));
    problem("");
  } catch (error) {
    at("about").textContent = "The server has not said what its model is.";
    problem(error.message);
  }
}

function describe(info) {
  task = Object.hasOwn(TASKS, info.task) ? { asked: [], ...TASKS[info.task] } : RECORD;
  document.title = `${visible(info.model_id)} · ldt`;
  at("model").textContent = visible(info.model_id);
  const size = info.max_chunk_length;
  const cuts = Boolean(info.max_input_length); // no document is read in chunks
  const reads = !size ? "" : cuts ? ` Documents of up to ${size.toLocaleString("en")} tokens are read.`
    : ` Documents of any length are read, ${size.toLocaleString("en")} tokens at a time.`;
  const name = task.title ?? String(info.task).replaceAll("_", " ");
  at("about").textContent = `${name.slice(0, 1).toUpperCase()}${name.slice(1)}.${reads}`;
  at("fields").replaceChildren(...task.asked.map((field) => make("label", {}, field.label,
    make(field.list ? "textarea" : "input", { id: `field-${field.name}`, dir: "auto", autocomplete: "off", rows: field.list && 5 }))));
  if (!task.text) at("text-label").textContent = "A document of this task: a record in JSON";
  if (task.lines) at("text-label").textContent = "Documents, one a line";
  at("more-label").hidden = !task.passages;
  at("truncate").checked = false;
  at("truncate-label").hidden = !(cuts && task.text);
  at("ask").disabled = false;
}

function request() {
  const text = at("text").value;
  if (!text.trim()) throw new Error("There is no text yet.");
  if (!task.text) {
    try { return JSON.parse(text); } catch { throw new Error("This is no record in JSON."); }
  }
  const body = { ...task.also, [task.text]: task.lines ? lines(text) : text };
  if (at("truncate").checked) body.truncate = true;
  for (const field of task.asked) {
    const typed = at(`field-${field.name}`).value;
    const value = field.list ? lines(typed) : typed.trim();
    if (value.length) body[field.name] = value;
    else if (!field.free) throw new Error(`${field.label}: there is nothing yet.`);
  }
  return body;
}

async function ask() {
  if (waiting) return;
  if (!task) await begin();
  if (!task) return;
  problem("");
  try {
    const body = request();
    waiting = new AbortController();
    busy(true);
    const began = performance.now();
    const [reply, note] = await answered(body, waiting.signal);
    const answer = Array.isArray(reply) ? { ranking: reply } : reply;
    const seconds = ((performance.now() - began) / 1000).toFixed(1);
    show(answer, body[task.text] ?? "");
    const read = answer?.chunks > 1 ? `, read in ${answer.chunks} chunks` : "";
    at("status").textContent = `Answered in ${seconds} s${read}.${note}`;
    at("answered").focus();
  } catch (error) {
    if (error.name === "AbortError") at("status").textContent = "Stopped waiting.";
    else problem(error.message);
  } finally {
    waiting = null;
    busy(false);
  }
}

async function answered(body, signal) {
  const passages = task.passages ? Math.max(0, Math.min(20, Number(at("passages").value) || 0)) : 0;
  try {
    return [await call(task.route, passages ? { ...body, passages } : body, signal), ""];
  } catch (error) { // a model or a runtime that names none
    if (!passages || (error.status !== 422 && error.status !== 424)) throw error;
    return [await call(task.route, body, signal), ` Without passages: ${error.message}`];
  }
}

function busy(on) {
  at("ask").disabled = on || !task;
  at("stop").hidden = !on;
  if (on) at("status").textContent = "Waiting for the answer …";
}
function problem(text) {
  at("problem").textContent = visible(text);
  at("problem").hidden = !text;
  if (text) at("status").textContent = "";
}

// -- showing ---------------------------------------------------------------------------------------
function show(answer, text) {
  const marks = spans(answer); // as the answer has them: its passages are best first
  const shown = marks.slice(0, MOST);
  at("answer").replaceChildren(...[
    verdict(answer), notes(answer),
    answer.scores && !Array.isArray(answer.scores) ? table(Object.entries(answer.scores).sort((a, b) => b[1] - a[1]), "Class") : null,
    answer.ranking ? table(answer.ranking.map((each) => [each.text, each.score]), "Choice") : null,
    ...listed(shown, marks.length),
    ...(text && shown.length ? [make("h3", {}, "In the document"), textBox(marked(text, shown))] : []),
    make("details", {}, make("summary", {}, "Answer in JSON"), make("pre", { tabindex: "0" }, JSON.stringify(answer, null, 2))),
  ].filter(known));
  at("result").hidden = false;
  at("panes").classList.add("answered");
  showFirstMark(at("answer").querySelector(".text"));
}

function verdict(answer) {
  const best = answer.ranking && answer.answer === undefined ? answer.ranking[0]?.text : undefined;
  const value = answer.summary ?? best ?? answer.answer ?? answer.label;
  let text = Array.isArray(value) ? value.join(", ") || "None of the classes" : value;
  if (answer.abstained) text = "No answer: not sure enough";
  else if (text === "") text = "No answer in this document";
  else if (answer.entities) text = `${answer.entities.length} ${answer.entities.length === 1 ? "entity" : "entities"}`;
  else if (answer.clusters) text = count(answer.clusters.length, "cluster");
  return known(text) ? make("p", { id: "verdict", lang: "" }, typeof text === "number" ? figure(text) : text) : null;
}

function notes(answer) {
  const lines = [];
  if (answer.abstained && answer.why) lines.push(`Why: ${typeof answer.why === "string" ? answer.why : JSON.stringify(answer.why)}`);
  if (answer.truncated) lines.push("The document was cut off: its end was not read.");
  if (typeof answer.score === "number") lines.push(`Score ${figure(answer.score)}`);
  if (isShare(answer.no_answer)) lines.push(`Probability of no answer ${figure(answer.no_answer)}`);
  return lines.length ? make("p", { class: "small" }, lines.join(". ")) : null;
}

function table(rows, head) {
  return make("table", {}, make("thead", {}, make("tr", {}, make("th", { scope: "col" }, head),
    make("th", { scope: "col", class: "number" }, "Score"), make("td", {}))),
  make("tbody", {}, rows.slice(0, MOST).map(([name, score]) => make("tr", {}, make("th", { scope: "row" }, outside(name)),
    make("td", { class: "number" }, figure(score)),
    make("td", {}, isShare(score) ? make("meter", { min: 0, max: 1, value: score, "aria-hidden": "true" }) : null)))));
}

function spans(answer) {
  const found = [];
  const take = (each, kind, label) => {
    if (Number.isInteger(each?.start) && Number.isInteger(each.end) && each.start < each.end) {
      found.push({ start: each.start, end: each.end, kinds: [kind], label, text: each.text ?? "", score: kind === "answer" && isShare(each.score) ? each.score : null });
    }
  };
  if (answer.answer && typeof answer.answer === "string") take({ ...answer, text: answer.answer }, "answer", "");
  for (const each of answer.entities ?? []) take(each, "answer", each.label);
  (answer.clusters ?? []).forEach((cluster, i) => cluster.forEach((each) => take(each, "answer", `#${i + 1} ${cluster[0].text.slice(0, 30)}`)));
  for (const each of answer.evidence ?? []) take(each, "answer", "evidence");
  for (const each of answer.passages ?? []) take(each, "passage", "");
  return found;
}

function listed(marks, all) {
  if (!marks.length) return [];
  const items = marks.map((mark, i) => make("li", {},
    make("button", { type: "button", class: "jump", click: () => jump(i) }, outside(mark.text.slice(0, 300) || "(there)")),
    " ", make("span", { class: "small" }, outside(mark.label || mark.kinds[0]), known(mark.score) ? ` ${figure(mark.score)}` : "")));
  return [make("h3", {}, "Found"), make("ul", {}, items),
    all > marks.length ? make("p", { class: "small" }, `${all - marks.length} more are in the JSON below.`) : null];
}
function jump(i) {
  at(`mark-${i}`)?.scrollIntoView({ block: "center" });
  at(`mark-${i}`)?.focus({ preventScroll: true });
}

// -- files and keys --------------------------------------------------------------------------------
async function read(file) {
  if (!file) return;
  const text = await file.text();
  if (text.includes("\0")) return problem(`${file.name} is no text file.`);
  problem("");
  at("text").value = text;
  at("status").textContent = `${visible(file.name)}: ${count(text.length, "character")}.`;
}
for (const kind of ["dragenter", "dragover", "dragleave", "drop"]) {
  document.addEventListener(kind, (event) => {
    if (![...(event.dataTransfer?.types ?? [])].includes("Files")) return;
    event.preventDefault();
    document.body.classList.toggle("dragged", kind !== "drop" && (kind !== "dragleave" || Boolean(event.relatedTarget)));
    if (kind === "drop") read(event.dataTransfer.files[0]);
  });
}
at("file").addEventListener("change", () => {
  read(at("file").files[0]);
  at("file").value = ""; // the same file may be chosen again, changed
});
at("key").addEventListener("change", begin);
at("stop").addEventListener("click", () => waiting?.abort());
at("form").addEventListener("submit", (event) => { event.preventDefault(); ask(); });
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); ask(); }
});
begin();
