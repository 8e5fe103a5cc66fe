// A canvas to draw on with mouse, pen or finger. During and after a stroke it sends the amount of ink on each of
// side x side pixels as base64: plain numbers, which need no image decoder.
const side = Number(props.side);
let pen = null;
let scheduled = false;
let pictured = false;

const sheet = () => element.querySelector("canvas");

function place(event) {
  const canvas = sheet(), box = canvas.getBoundingClientRect();
  const scale = canvas.width / box.width;
  return [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
}

function draw(from, to) {
  const ink = sheet().getContext("2d");
  ink.lineWidth = sheet().width / 11;
  ink.lineCap = ink.lineJoin = "round";
  ink.beginPath();
  ink.moveTo(...from);
  ink.lineTo(...to);
  ink.stroke();
}

function clear() {
  sheet().getContext("2d").clearRect(0, 0, sheet().width, sheet().height);
  pictured = false;
}

// What was uploaded or chosen, in place of the drawing; a stroke replaces it.
function show() {
  clear();
  const picture = new Image();
  picture.onload = () => {
    const { width, height } = sheet(), scale = Math.min(width / picture.width, height / picture.height);
    const [w, h] = [picture.width * scale, picture.height * scale];
    clear();
    sheet().getContext("2d").drawImage(picture, (width - w) / 2, (height - h) / 2, w, h);
    pictured = true;
  };
  picture.src = props.value.split("#")[0];
}

function send() {
  const small = document.createElement("canvas");
  small.width = small.height = side;
  const context = small.getContext("2d");
  context.drawImage(sheet(), 0, 0, side, side);
  const pixels = context.getImageData(0, 0, side, side).data;
  let ink = "";
  for (let i = 3; i < pixels.length; i += 4) ink += String.fromCharCode(pixels[i]);
  trigger("input", { ink: btoa(ink) });
}

function sendSoon() {
  if (scheduled) return;
  scheduled = true;
  setTimeout(() => { scheduled = false; send(); }, 250);
}

// The listeners belong to the component, as its content may be rendered again.
element.addEventListener("pointerdown", (event) => {
  if (event.target !== sheet()) return;
  event.target.setPointerCapture(event.pointerId);
  if (pictured) clear();
  pen = place(event);
  draw(pen, pen);
});
element.addEventListener("pointermove", (event) => {
  if (pen === null) return;
  const next = place(event);
  draw(pen, next);
  pen = next;
  sendSoon();
});
for (const end of ["pointerup", "pointercancel"]) {
  element.addEventListener(end, () => {
    if (pen === null) return;
    pen = null;
    sendSoon();
  });
}
element.addEventListener("click", (event) => {
  if (event.target.closest("button")) clear();
});
watch("value", show);
show();
