"use strict";
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const make = (tag, className, text) => {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
};
const load = (id) => JSON.parse(document.getElementById("data-" + id)?.textContent || "null");

// A grid of devices for each position along the axes that are neither rows nor columns.
function drawMesh(root, data, step, say) {
  const long = data.sizes.map((size, i) => i).filter((i) => data.sizes[i] > 1);
  const [rows, columns] = long.length > 1 ? [long[0], long[1]] : [null, long[0] ?? 0];
  const named = (axis, at) => `${data.axes[axis]}=${at}`;
  const planes = new Map();
  data.places.forEach((place, device) => {
    const rest = place.map((at, i) => [i, at]).filter(([i]) => i !== rows && i !== columns && data.sizes[i] > 1);
    const key = rest.map(([i, at]) => named(i, at)).join(", ");
    if (!planes.has(key)) planes.set(key, new Map());
    const plane = planes.get(key), row = rows === null ? 0 : place[rows];
    if (!plane.has(row)) plane.set(row, []);
    plane.get(row).push(device);
  });
  root.replaceChildren();
  const whole = step && step.blocks.length === 1 && data.places.length > 1;
  for (const [title, plane] of whole ? [["the whole array", new Map([[0, [0]]])]] : planes) {
    const table = make("table");
    if (title) table.append(make("caption", "", title));
    const head = table.createTHead().insertRow();
    if (rows !== null && !whole) head.append(make("td"));
    if (!whole) for (const device of plane.values().next().value) {
      const th = make("th", "", named(columns, data.places[device][columns]));
      th.scope = "col";
      head.append(th);
    }
    const body = table.createTBody();
    for (const [at, devices] of plane) {
      const row = body.insertRow();
      if (rows !== null && !whole) {
        const th = make("th", "", named(rows, at));
        th.scope = "row";
        row.append(th);
      }
      for (const device of devices) row.insertCell().append(drawDevice(data, step, device, whole, say));
    }
    root.append(table);
  }
}

function drawDevice(data, step, device, whole, say) {
  const wrong = step?.wrong?.includes(device), known = step?.expected !== undefined;
  const cell = make(say ? "button" : "div", "cell" + (wrong ? " wrong" : known ? " right" : ""));
  const place = whole ? "whole array" : data.places[device].map((at, i) => `${data.axes[i]}=${at}`).join(", ");
  const mark = wrong ? "✗" : known ? "✓" : "";
  cell.append(make("span", "device", whole ? "" : `device ${data.devices[device]} `), make("span", "mark", mark));
  if (step) {
    const text = `(${place}): ${step.blocks[device]}` + (known ? `\nexpected: ${step.expected[device]}` : "");
    cell.title = text;
    if (say) {
      cell.type = "button";
      for (const event of ["mouseenter", "focus", "click"]) cell.addEventListener(event, () => { say.textContent = text; });
    } else {
      cell.append(make("span", "block", step.blocks[device]));
      if (wrong) cell.append(make("span", "should", "expected\n" + step.expected[device]));
    }
  }
  return cell;
}

function drawCause(cause) {
  const scrubber = cause.querySelector(".scrubber");
  if (!cause.open || !scrubber || scrubber.dataset.drawn) return;
  scrubber.dataset.drawn = "yes";
  const data = load(scrubber.dataset.for), steps = data.steps, list = scrubber.querySelector(".steps");
  const mesh = cause.querySelector(".mesh");
  drawMesh(mesh, data, steps.at(-1), mesh.nextElementSibling);
  const [range, output] = [scrubber.querySelector("input"), scrubber.querySelector("output")];
  const first = Math.max(0, steps.findIndex((step) => step.wrong?.length));
  const items = steps.map((step, i) => {
    const item = make("li", step.wrong?.length ? "wrong" : "");
    item.append(make("span", "", step.expected ? (step.wrong.length ? "✗" : "✓") : "·"), make("span", "", step.does), make("span", "", step.type));
    item.addEventListener("click", () => show(i));
    return item;
  });
  list.append(...items);
  const show = (i) => {
    const step = steps[(i = Math.min(Math.max(i, 0), steps.length - 1))];
    range.value = i;
    range.setAttribute("aria-valuetext", `${i + 1} of ${steps.length}: ${step.does}`);
    output.textContent = `step ${i + 1} of ${steps.length}`;
    items.forEach((item, j) => item.classList.toggle("now", i === j));
    list.scrollTop = items[i].offsetTop - list.offsetTop - list.clientHeight / 2;
    const source = scrubber.querySelector(".source");
    source.replaceChildren(make("code", "", step.line || step.does), make("span", "", step.at || "no line of its own"));
    drawMesh(scrubber.querySelector(".mesh"), data, step);
  };
  range.addEventListener("input", () => show(Number(range.value)));
  list.addEventListener("keydown", (event) => {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (by) { event.preventDefault(); show(Number(range.value) + by); }
  });
  for (const button of all("[data-go]", scrubber)) {
    button.addEventListener("click", () => show(button.dataset.go === "wrong" ? first : Number(range.value) + Number(button.dataset.go)));
  }
  show(first);
}

const body = document.querySelector("#rows tbody");
if (body) {
  const rows = [...body.rows].map((row) => [row, row.textContent.toLowerCase(), [...row.cells].map((cell) => cell.textContent)]);
  const [search, law, engine, outcome] = ["search", "law", "engine", "outcome"].map((id) => document.getElementById(id));
  rows.forEach(([row, , cells]) => row.cells[4].classList.add(cells[4].toLowerCase().replaceAll(" ", "-")));
  let contract = "";
  const filter = () => {
    let count = 0;
    for (const [row, text, cells] of rows) {
      const fits = [[law, 2], [engine, 3], [outcome, 4]].every(([select, i]) => !select.value || cells[i] === select.value);
      row.hidden = !(fits && (!contract || cells[0] === contract) && search.value.toLowerCase().split(" ").every((word) => text.includes(word)));
      count += !row.hidden;
    }
    document.getElementById("count").textContent = `${count} of ${rows.length} rows` + (contract ? ` of ${contract}` : "");
  };
  const form = document.querySelector(".filters");
  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => { contract = ""; setTimeout(filter); });
  for (const button of all(".heat button")) {
    button.addEventListener("click", () => {
      form.reset();
      setTimeout(() => {
        [contract, law.value] = [button.dataset.contract, button.dataset.law];
        filter();
        document.getElementById("results").scrollIntoView();
      });
    });
  }
  filter();
}

for (const table of all(".sortable")) {
  all("th", table).forEach((head, i) => head.querySelector("button").addEventListener("click", () => {
    const up = head.getAttribute("aria-sort") !== "ascending", number = (text) => parseFloat(text.replace(/,/g, ""));
    all("th", table).forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const keyed = [...table.tBodies[0].rows].map((row) => [row.cells[i].textContent, row]);
    const compare = (a, b) => (isNaN(number(a)) || isNaN(number(b)) ? a.localeCompare(b) : number(a) - number(b));
    keyed.sort(([a], [b]) => (up ? 1 : -1) * compare(a, b));
    table.tBodies[0].append(...keyed.map(([, row]) => row));
  }));
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(button.previousElementSibling);
    button.textContent = "Selected";
  }
});

const causes = all("details.cause");
for (const cause of causes) {
  drawCause(cause);
  cause.addEventListener("toggle", () => drawCause(cause));
}
addEventListener("beforeprint", () => causes.forEach((cause) => { cause.open = true; drawCause(cause); }));
const open = () => {
  const target = document.getElementById(location.hash.slice(1));
  if (target?.matches("details")) target.open = true;
};
addEventListener("hashchange", open);
open();
document.addEventListener("keydown", (event) => {
  if (event.target.matches("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") {
    event.preventDefault();
    document.getElementById("search")?.focus();
  }
  const by = { j: 1, k: -1 }[event.key];
  if (by && causes.length) {
    const now = causes.indexOf(document.activeElement.closest?.("details.cause"));
    const next = causes[Math.min(Math.max(now + by, 0), causes.length - 1)];
    next.open = true;
    next.querySelector("summary").focus();
    next.scrollIntoView();
  }
});
