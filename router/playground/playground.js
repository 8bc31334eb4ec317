// The playground: one prompt, run through several arms in turn, and what the server says it did with each segment.
// Everything comes from this server's own API; nothing is kept but in this page.

const ARMS = { full: true, prefix: true, hypic: true, transition: false, addition: false, last_state: false, anchored: false };
const POLL_MS = 2000;

const EXAMPLE = {
  documents: [
    ["Site log", "When it came to the locker, Anton Bauer keeps clover. On the key plan Emil Reyes accepted silver. Please keep the stairs free. Lunch was late because of a delivery. The tray that we keep by Marco Osborne remains rose."],
    ["Desk clerk notes", "The bay set aside for Leila Abbott stays barley. On the bay plan Freya Norris keeps birch. A window on the second floor does not close. The lift was out of order for an hour."],
    ["", "The heating will be serviced next month. The meeting was moved to the large hall. The channel set aside for Zoltan Zorn remains meadow. When it came to the key, Jonas Larkin accepted nickel."],
    ["Store room list", "A visitor asked for the way to the station. Please keep the stairs free. All doors were closed at eight. The bay set aside for Stefan Keller stays rose."],
    ["Notes from the hall", "Rain was forecast for the weekend. When it came to the bay, Irene Whitlock keeps onyx. The desk set aside for Thea Gomez remains birch. The coffee machine is working again."],
    ["Front office notes", "Two parcels arrived at the front office. New gloves are on the shelf by the door. The tray that we keep by Julia Petrov stays harbor. The corridor lights were checked before noon."],
  ],
  question: "Which bay belongs to Irene Whitlock?",
};

const SOURCES = {
  prefix: "reused as a prefix",
  segment: "reused from the cache",
  build: "built for this request",
  active: "computed in place",
};
const REASONS = {
  question: "the last section is always computed",
  too_short: "too short to be worth an entry",
  cold: "never met before, or forgotten",
  evicted: "met before and evicted",
  arm: "this arm does not reuse segments",
  in_flight: "another request was having it built",
  repeated: "built for an earlier place in this prompt",
  leading: "the opening text is kept as a prefix",
  no_room: "cached, but there is no room to make it ready",
  damaged: "its file is damaged",
  truncated: "its file is cut short",
  schema: "its file is of another version",
  foreign: "its file is not of this cache",
  missing: "its file is gone",
  read: "its file could not be read",
};

const $ = (id) => document.getElementById(id);
const documents = $("documents");
const runs = new Map(); // arm -> what its last run told
let shown = "";
let running = null;

// ---- the prompt -----------------------------------------------------------------------------------------------

function addDocument(title = "", text = "", focus = false) {
  const item = $("document").content.firstElementChild.cloneNode(true);
  item.querySelector(".title").value = title;
  item.querySelector(".text").value = text;
  item.querySelector(".up").onclick = () => move(item, -1);
  item.querySelector(".down").onclick = () => move(item, 1);
  item.querySelector(".remove").onclick = () => {
    const next = item.nextElementSibling ?? item.previousElementSibling;
    item.remove();
    (next?.querySelector(".text") ?? $("add")).focus();
  };
  item.addEventListener("keydown", (event) => {
    if (!event.altKey || (event.key !== "ArrowUp" && event.key !== "ArrowDown")) return;
    event.preventDefault();
    move(item, event.key === "ArrowUp" ? -1 : 1);
    event.target.focus();
  });
  documents.append(item);
  if (focus) item.querySelector(".text").focus();
}

function move(item, by) {
  if (by < 0 && item.previousElementSibling) item.previousElementSibling.before(item);
  if (by > 0 && item.nextElementSibling) item.nextElementSibling.after(item);
  item.scrollIntoView({ block: "nearest" });
}

function shuffle() {
  const items = [...documents.children];
  for (let at = items.length - 1; at > 0; at--) {
    const other = Math.floor(Math.random() * (at + 1));
    [items[at], items[other]] = [items[other], items[at]];
  }
  documents.replaceChildren(...items);
}

function fill(example) {
  documents.replaceChildren();
  for (const [title, text] of example.documents) addDocument(title, text);
  $("question").value = example.question;
}

// Each arm has a salt of its own, so that none lives on what another has computed.
function body(prompt, arm) {
  return { ...prompt, cache_salt: [$("salt").value, `arm ${arm}`].filter(Boolean).join("/"), hypic: { explain: true, arm } };
}

function prompted() {
  const found = [...documents.children].map((item) => ({
    title: item.querySelector(".title").value.trim(),
    text: item.querySelector(".text").value,
  }));
  return {
    messages: [{ role: "user", content: $("question").value }],
    documents: found.filter(({ text }) => text.trim()).map(({ title, text }) => (title ? { title, text } : { text })),
    max_tokens: Number($("tokens").value),
    temperature: 0,
    stream: true,
    stream_options: { include_usage: true },
  };
}

// ---- talking to the server ------------------------------------------------------------------------------------

function headers() {
  const key = $("key").value;
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

async function failure(response) {
  if (response.status === 401) $("key-row").hidden = false;
  const told = await response.json().catch(() => null);
  return new Error(`${response.status}: ${told?.error?.message ?? response.statusText}`);
}

async function* serverEvents(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const data = block.split("\n").find((line) => line.startsWith("data: "))?.slice(6);
      if (data === "[DONE]") return;
      if (data) yield JSON.parse(data);
    }
  }
}

async function runArm(prompt, arm, signal) {
  const run = { arm, answer: "", ttftMs: null, usage: null, report: null, previousMs: runs.get(arm)?.ttftMs ?? null };
  const began = performance.now();
  const response = await fetch("v1/chat/completions", {
    method: "POST", headers: headers(), body: JSON.stringify(body(prompt, arm)), signal,
  });
  if (!response.ok) throw await failure(response);
  for await (const event of serverEvents(response)) {
    if (event.error) throw new Error(event.error.message);
    run.ttftMs ??= performance.now() - began; // the server starts its answer with the first token
    run.answer += event.choices[0]?.delta?.content ?? "";
    run.usage = event.usage ?? run.usage;
    run.report = event.hypic ?? run.report;
    runs.set(arm, run);
    showResults();
  }
  if (!run.report) throw new Error(`the answer of ${arm} broke off`);
  showPlan(arm);
}

async function run() {
  if (running) return;
  const arms = [...document.querySelectorAll("#arms input:checked")].map((box) => box.value);
  $("error").hidden = arms.length > 0;
  $("error").textContent = "Choose at least one arm.";
  if (!arms.length) return;
  const prompt = prompted(); // once: whoever edits meanwhile edits the next run
  running = new AbortController();
  $("run").disabled = true;
  $("stop").hidden = false;
  try {
    for (const arm of arms) {
      $("results-hint").textContent = `running ${arm} …`;
      await runArm(prompt, arm, running.signal);
    }
    $("results-hint").textContent = "As seen by this page, the way to the server included. Pale: the run before.";
  } catch (error) {
    $("results-hint").textContent = "";
    $("error").hidden = false;
    $("error").textContent = error.name === "AbortError" ? "Stopped." : error.message;
  } finally {
    running = null;
    $("run").disabled = false;
    $("stop").hidden = true;
    poll();
  }
}

// ---- showing --------------------------------------------------------------------------------------------------

function element(tag, properties = {}, ...children) {
  const { style, ...rest } = properties;
  const made = Object.assign(document.createElement(tag), rest);
  Object.assign(made.style, style ?? {});
  made.append(...children);
  return made;
}

const ms = (value) => `${value < 10 ? value.toFixed(1) : Math.round(value).toLocaleString("en")} ms`;
const count = (value) => value.toLocaleString("en");
const bytes = (value) => {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const at = value ? Math.min(units.length - 1, Math.floor(Math.log2(value) / 10)) : 0;
  return `${(value / 1024 ** at).toFixed(at && value / 1024 ** at < 100 ? 1 : 0)} ${units[at]}`;
};

function showResults() {
  const slowest = Math.max(...[...runs.values()].flatMap((run) => [run.ttftMs ?? 0, run.previousMs ?? 0]), 1);
  $("results").replaceChildren(...[...runs.values()].map((run) => {
    const bars = [element("i", { style: { width: `${(70 * run.ttftMs) / slowest}%` } }), element("span", {}, ms(run.ttftMs))];
    if (run.previousMs !== null) bars.push(element("span", { className: "hint" }, `before: ${ms(run.previousMs)}`));
    const plan = run.report?.plan;
    const counts = plan
      ? `${count(plan.prompt_tokens)} prompt tokens: ${count(plan.cached_tokens)} skipped, ` +
        `${count(plan.computed_tokens)} computed, ${count(plan.built_tokens)} built`
      : "";
    return element("div", { className: "result" },
      element("b", {}, run.arm), element("div", { className: "track" }, ...bars),
      element("div", { className: "counts" }, counts), element("div", { className: "answer" }, run.answer));
  }));
}

function pieces(row) {
  if (row.source === "prefix" || row.source === "active") return [[row.source, row.tokens]];
  return [["seam", row.seam_tokens], [row.source, row.tokens - row.seam_tokens]];
}

function explained(row) {
  const why = REASONS[row.reason] ?? row.reason;
  const where = row.tier && row.tier !== "device" ? `, read from ${row.tier}` : "";
  return SOURCES[row.source] + where + (why ? `: ${why}` : "") + (row.seam_tokens ? `; seam of ${row.seam_tokens}` : "");
}

function showPlan(arm) {
  shown = arm;
  const { plan, timings } = runs.get(arm).report;
  $("which").replaceChildren(...[...runs.values()].filter((run) => run.report).map((run) => {
    const button = element("button", { type: "button", onclick: () => showPlan(run.arm) }, run.arm);
    button.setAttribute("aria-pressed", String(run.arm === shown));
    return button;
  }));
  $("strip").replaceChildren(...plan.segments.map((row) => element("span",
    { title: `${row.label || row.kind}, ${row.tokens} tokens: ${explained(row)}`, style: { flex: String(row.tokens) } },
    ...pieces(row).filter(([, tokens]) => tokens).map(([kind, tokens]) =>
      element("i", { className: kind, style: { flex: String(tokens) } })))));
  $("strip").setAttribute("aria-label", plan.segments.map((row) => `${row.label || row.kind}: ${explained(row)}`).join(". "));
  $("segments").tBodies[0].replaceChildren(...plan.segments.map((row) => element("tr", {},
    element("td", { className: "label", title: row.label || row.kind }, row.label || row.kind),
    ...[row.position, row.tokens, row.computed_tokens].map((value) => element("td", { className: "number" }, count(value))),
    element("td", {}, element("i", { className: row.source }), explained(row)))));
  const parts = [["planning", "reserve_seconds"], ["cold segments", "dispatch_seconds"], ["combine pass", "combine_seconds"]];
  const spent = parts.filter(([, name]) => name in timings).map(([label, name]) => `${label} ${ms(1000 * timings[name])}`);
  $("timings").textContent = `On the server, ${timings.combine_worker}: ${spent.join(", ")}.`;
}

function showCache(info) {
  const blocks = info.workers.filter((worker) => worker.cache?.length).map((worker) => element("div", {},
    element("h3", {}, worker.name),
    ...worker.cache.map((tier) => {
      const share = (value) => `${tier.budget_bytes ? (100 * value) / tier.budget_bytes : 0}%`;
      const text = `${bytes(tier.used_bytes)} of ${bytes(tier.budget_bytes)}`;
      const kinds = Object.entries(tier.entries ?? {}).map(([kind, number]) => `${count(number)} ${kind}`).join(", ");
      const meter = element("div", { className: "meter" },
        element("i", { className: "segment", style: { width: share(tier.used_bytes) } }));
      meter.setAttribute("role", "meter");
      for (const [name, value] of [["label", `${tier.tier} of ${worker.name}`], ["valuenow", tier.used_bytes], ["valuemin", 0],
        ["valuemax", tier.budget_bytes], ["valuetext", text]]) meter.setAttribute(`aria-${name}`, value);
      return element("div", { className: "tier" },
        element("span", {}, tier.tier), meter, element("span", { className: "number" }, kinds ? `${text} · ${kinds}` : text));
    })));
  $("cache").replaceChildren(...(blocks.length ? blocks : [element("p", { className: "hint" }, "no worker tells of a cache")]));
}

async function ask(path) {
  const response = await fetch(path, { headers: headers() });
  if (!response.ok) throw await failure(response);
  return response.json();
}

async function poll() {
  let state = "unavailable", text;
  try {
    state = (await (await fetch("health")).json()).status;
    text = `${(await ask("v1/models")).data[0].id}: ${state}`;
    showCache(await ask("server_info")); // for operators alone, where keys are asked for
  } catch (error) {
    const told = error instanceof TypeError ? "the server does not answer" : error.message;
    $("cache").replaceChildren(element("p", { className: "hint" }, told));
    text ??= told;
  }
  $("dot").className = `dot ${state}`;
  if ($("status").textContent !== text) $("status").textContent = text;
}

// ---- wiring ---------------------------------------------------------------------------------------------------

for (const [arm, chosen] of Object.entries(ARMS)) {
  $("arms").append(element("label", {}, element("input", { type: "checkbox", value: arm, checked: chosen }), ` ${arm}`));
}
$("add").onclick = () => addDocument("", "", true);
$("shuffle").onclick = shuffle;
$("example").onclick = () => fill(EXAMPLE);
$("stop").onclick = () => running?.abort();
$("key").onchange = poll;
$("prompt").addEventListener("submit", (event) => {
  event.preventDefault();
  run();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
  event.preventDefault(); // a focused button would be pressed as well
  $("prompt").requestSubmit();
});
fill(EXAMPLE);
poll();
setInterval(() => document.hidden || running || poll(), POLL_MS);
