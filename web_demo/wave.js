// The strip under the text: one bar for each slice of audio, coloured as far as it has been heard.

const PITCH_PX = 4;
const BAR_PX = 2;
const FIRST_WINDOW_S = 4;

export class Wave {
  constructor(canvas) {
    this.canvas = canvas;
    this.clear();
    new ResizeObserver(() => this.draw(this.heardS)).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw(this.heardS));
  }

  clear() {
    this.blocks = []; // [start, duration, peak]
    this.totalS = 0;
    this.heardS = 0;
    this.draw(0);
  }

  add(peak, durationS) {
    this.blocks.push([this.totalS, durationS, peak]);
    this.totalS += durationS;
  }

  draw(heardS) {
    this.heardS = heardS;
    const { canvas } = this;
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    if (canvas.width !== Math.round(width * ratio)) canvas.width = Math.round(width * ratio);
    if (canvas.height !== Math.round(height * ratio)) canvas.height = Math.round(height * ratio);
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    const style = getComputedStyle(document.documentElement);
    const [heardColour, restColour] = [style.getPropertyValue("--accent"), style.getPropertyValue("--bar")];

    // The window doubles when the audio outgrows it, so that bars do not crawl.
    let windowS = FIRST_WINDOW_S;
    while (windowS < this.totalS) windowS *= 2;
    const n = Math.floor(width / PITCH_PX);
    const peaks = new Float32Array(n);
    for (const [startS, durationS, peak] of this.blocks) {
      const from = Math.floor((startS / windowS) * n);
      const to = Math.max(from + 1, Math.ceil(((startS + durationS) / windowS) * n));
      for (let i = from; i < to && i < n; i += 1) peaks[i] = Math.max(peaks[i], peak);
    }
    const nHeard = (heardS / windowS) * n;
    const middle = height / 2;
    for (let i = 0; i < n; i += 1) {
      const size = Math.max(1, Math.sqrt(peaks[i]) * (height - 12));
      pen.fillStyle = peaks[i] > 0 && i < nHeard ? heardColour : restColour;
      pen.fillRect(i * PITCH_PX, middle - size / 2, BAR_PX, size);
    }
  }
}
