// Digits of SIDE x SIDE pixels as arrays of numbers from 0 (paper) to 1 (ink), row by row.
export const SIDE = 28;

// Reads a digit where the corners of the output lie in it: top left, top right, bottom right and bottom left, from -1 to
// 1, x first. Bilinear, black outside, and pixels are areas: what pstn.warp does with fill=0.
export function warp(digit, corners) {
  const [origin, right, , down] = corners;
  const at = (x, y) => (x < 0 || y < 0 || x >= SIDE || y >= SIDE ? 0 : digit[y * SIDE + x]);
  const output = new Float32Array(SIDE * SIDE);
  for (let i = 0; i < SIDE; i++) {
    for (let j = 0; j < SIDE; j++) {
      const [u, v] = [(j + 0.5) / SIDE, (i + 0.5) / SIDE];
      const [x, y] = [0, 1].map((axis) => {
        const place = origin[axis] + u * (right[axis] - origin[axis]) + v * (down[axis] - origin[axis]);
        return ((place + 1) * SIDE - 1) / 2;
      });
      const [left, top] = [Math.floor(x), Math.floor(y)], [a, b] = [x - left, y - top];
      output[i * SIDE + j] =
        (1 - b) * ((1 - a) * at(left, top) + a * at(left + 1, top)) +
        b * ((1 - a) * at(left, top + 1) + a * at(left + 1, top + 1));
    }
  }
  return output;
}

// Turns a digit clockwise.
export function turn(digit, degrees) {
  const angle = (degrees * Math.PI) / 180, [c, s] = [Math.cos(angle), Math.sin(angle)];
  return warp(digit, [[-1, -1], [1, -1], [1, 1], [-1, 1]].map(([x, y]) => [c * x + s * y, c * y - s * x]));
}

// The ink on a canvas, placed as in MNIST: 20 pixels long, its centre of mass in the middle. Null without ink.
export function fromCanvas(canvas) {
  const { width, height } = canvas, pixels = canvas.getContext("2d").getImageData(0, 0, width, height).data;
  let [left, top, right, bottom] = [width, height, -1, -1];
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      if (pixels[4 * (y * width + x) + 3] < 80) continue;
      [left, right, top, bottom] = [Math.min(left, x), Math.max(right, x), Math.min(top, y), Math.max(bottom, y)];
    }
  }
  if (right < 0) return null;
  // The corners of a window of SIDE pixels around the ink, of which it takes 20; the canvas is averaged down first.
  const [w, h] = [right - left + 1, bottom - top + 1], scale = 20 / Math.max(w, h);
  const read = (dx, dy) => {
    const small = Object.assign(document.createElement("canvas"), { width: SIDE, height: SIDE });
    const context = small.getContext("2d");
    context.imageSmoothingQuality = "high";
    context.drawImage(canvas, left, top, w, h, dx, dy, w * scale, h * scale);
    const data = context.getImageData(0, 0, SIDE, SIDE).data;
    return Float32Array.from({ length: SIDE * SIDE }, (_, i) => data[4 * i + 3] / 255);
  };
  const [dx, dy] = [(SIDE - w * scale) / 2, (SIDE - h * scale) / 2], centred = read(dx, dy);
  let [sum, x, y] = [0, 0, 0];
  centred.forEach((ink, i) => { sum += ink; x += ink * (i % SIDE); y += ink * Math.floor(i / SIDE); });
  const limit = (start, extent) => Math.max(0, Math.min(SIDE - extent, start));
  const middle = (SIDE - 1) / 2;
  return read(limit(dx + middle - x / sum, w * scale), limit(dy + middle - y / sum, h * scale));
}
