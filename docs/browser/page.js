import * as ort from "./ort.wasm.min.mjs";
import { SIDE, fromCanvas, turn, warp } from "./digit.js";

ort.env.wasm.numThreads = 1; // more need headers that static hosts do not send
ort.env.wasm.wasmPaths = new URL("./", import.meta.url).href;

const $ = (id) => document.getElementById(id);
const about = await (await fetch("model.json")).json();
const digits = about.digits.map((text) => Float32Array.from(atob(text), (byte) => byte.charCodeAt(0) / 255));
const sessions = {};
for (const name of ["cnn", "samples", "mean"]) sessions[name] = await ort.InferenceSession.create(`${name}.onnx`);

let digit = digits[4];
let noise = about.noise;
let busy = false;
let waiting = false;

// What a model says of a digit: its outputs by name, as arrays.
async function ask(name, shown) {
  const x = shown.map((value) => (value - about.mean[0]) / about.std[0]);
  const feeds = { x: new ort.Tensor("float32", x, [1, 1, SIDE, SIDE]) };
  if (name === "samples") {
    feeds.noise = new ort.Tensor("float32", Float32Array.from(noise), [about.samples, 1, about.noise_width]);
  }
  const output = await sessions[name].run(feeds);
  return Object.fromEntries(Object.entries(output).map(([key, tensor]) => [key, Array.from(tensor.data)]));
}

function url(pixels) {
  const canvas = Object.assign(document.createElement("canvas"), { width: SIDE, height: SIDE });
  paint(canvas, pixels);
  return canvas.toDataURL();
}

function paint(canvas, pixels) {
  const image = new ImageData(SIDE, SIDE);
  pixels.forEach((value, i) => image.data.set([255 * value, 255 * value, 255 * value, 255], 4 * i));
  canvas.getContext("2d").putImageData(image, 0, 0);
}

function element(name, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function row(label, probabilities) {
  const best = probabilities.indexOf(Math.max(...probabilities)), percent = Math.round(100 * probabilities[best]);
  const cells = document.createElement("tr");
  for (const text of [label, about.classes[best], `${percent}%`]) cells.insertCell().textContent = text;
  cells.cells[1].className = "answer";
  const bar = cells.insertCell();
  bar.className = "bar";
  bar.appendChild(document.createElement("div")).style.width = `${percent}%`;
  return cells;
}

async function draw() {
  const degrees = Number($("turn").value), way = $("way").value, shown = turn(digit, degrees);
  $("degrees").textContent = degrees;
  const cnn = await ask("cnn", shown), pstn = await ask(way, shown);
  $("answers").replaceChildren(row("CNN", cnn.probabilities), row("P-STN", pstn.probabilities));

  // boxes: (S, 1, 4, 2) from -1 to 1, clockwise from the top left, which is drawn with a thick edge
  const boxes = [];
  for (let at = 0; at < pstn.boxes.length; at += 8) {
    boxes.push([0, 2, 4, 6].map((i) => pstn.boxes.slice(at + i, at + i + 2)));
  }
  const image = element("image", { x: -0.5, y: -0.5, width: SIDE, height: SIDE, href: url(shown) });
  const frames = boxes.flatMap((corners) => {
    const points = corners.map((place) => place.map((p) => ((p + 1) * SIDE - 1) / 2).join(","));
    return [
      element("polygon", { points: points.join(" ") }),
      element("polyline", { points: points.slice(0, 2).join(" ") }),
    ];
  });
  $("frames").replaceChildren(image, ...frames);
  $("seen").replaceChildren(
    ...boxes.map((corners) => {
      const canvas = Object.assign(document.createElement("canvas"), { width: SIDE, height: SIDE });
      paint(canvas, warp(shown, corners));
      return canvas;
    }),
  );
  $("says").textContent = "What the P-STN's classifier saw:";
  // For those who compare these numbers with others.
  window.answer = { degrees, way, shown: Array.from(shown), cnn: cnn.probabilities, pstn: pstn.probabilities };
}

// Of several moves, the last one counts.
async function update() {
  waiting = busy;
  if (busy) return;
  do {
    busy = true;
    waiting = false;
    await draw();
    busy = false;
  } while (waiting);
}

about.classes.forEach((name, i) => {
  const button = $("keys").appendChild(document.createElement("button"));
  button.textContent = name;
  button.onclick = () => { wipe(); digit = digits[i]; update(); };
});
$("turn").oninput = $("way").onchange = update;
$("again").onclick = () => {
  noise = noise.map(() => Math.random() || 0.5);
  update();
};

const pad = $("pad"), pen = pad.getContext("2d", { willReadFrequently: true });
let last = null;
const wipe = () => pen.clearRect(0, 0, pad.width, pad.height);
const place = (event) => [event.offsetX, event.offsetY].map((value) => (value * pad.width) / pad.clientWidth);
function stroke(event) {
  const next = place(event);
  pen.lineWidth = pad.width / 11;
  pen.lineCap = pen.lineJoin = "round";
  pen.beginPath();
  pen.moveTo(...last);
  pen.lineTo(...next);
  pen.stroke();
  last = next;
}
pad.onpointerdown = (event) => { pad.setPointerCapture(event.pointerId); last = place(event); stroke(event); };
pad.onpointermove = (event) => { if (last) stroke(event); };
pad.onpointerup = pad.onpointercancel = () => {
  last = null;
  const drawn = fromCanvas(pad);
  if (drawn) { digit = drawn; update(); }
};
$("clear").onclick = wipe;
await update();
