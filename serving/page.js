"use strict";
// Everything that comes from the server or a file becomes text, never HTML.
const at = (id) => document.getElementById(id);

function add(parent, tag, text, name) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (name) made.className = name;
  parent.appendChild(made);
  return made;
}

function show(result, file) {
  const card = add(at("results"), "article");
  const image = add(card, "img");
  image.alt = "";
  if (result.explanation) image.src = "data:image/png;base64," + result.explanation.data;
  else {
    image.src = URL.createObjectURL(file);
    image.onload = () => URL.revokeObjectURL(image.src);
  }
  const told = add(card, "div");
  add(told, "p", file.name, "small");
  if (result.error) {
    add(told, "p", "Not read: " + result.error, "bad");
    return;
  }
  if (result.novel) add(told, "p", "Unlike every category", "novel");
  for (const choice of result.top) {
    const row = add(told, "p", undefined, "choice");
    add(row, "strong", choice.name);
    add(row, "span", " " + (100 * choice.confidence).toFixed(1) + "% " +
      (choice.kind === "discovered" ? "(discovered) " : ""));
    add(row, "code", choice.id);
    const bar = add(row, "progress");
    bar.max = 1;
    bar.value = choice.confidence;
  }
}

async function send(files) {
  if (!files.length) return;
  const form = new FormData();
  for (const file of files) form.append("image", file);
  const query = new URLSearchParams({ top_k: at("top").value || "1", explain: at("explain").checked });
  at("results").replaceChildren();
  at("state").textContent = "…";
  try {
    const response = await fetch("v1/classify?" + query, { method: "POST", body: form });
    const told = await response.json();
    if (!response.ok) {
      at("state").textContent = told.title + ": " + told.detail + ". " + told.fix + ".";
      return;
    }
    at("state").textContent = "";
    for (const result of told.results) show(result, files[result.index]);
  } catch (error) {
    at("state").textContent = "The server can't be reached.";
  }
}

at("files").addEventListener("change", () => send([...at("files").files]));
for (const id of ["top", "explain"]) at(id).addEventListener("change", () => send([...at("files").files]));
at("form").addEventListener("submit", (event) => event.preventDefault());
at("drop").addEventListener("dragover", (event) => event.preventDefault());
at("drop").addEventListener("drop", (event) => {
  event.preventDefault();
  at("files").files = event.dataTransfer.files;
  send([...event.dataTransfer.files]);
});
fetch("v1/model").then((response) => response.json()).then((model) => {
  at("model").textContent = model.classes + " categories, " + model.discovered + " discovered; model " +
    model.model_version.slice(0, 12);
}).catch(() => {});
