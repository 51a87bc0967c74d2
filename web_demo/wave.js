// The strip under the text: one bar for each slice of audio, coloured as far as it has been heard.

const PITCH_PX = 4;
const BAR_PX = 2;
const FIRST_WINDOW_S = 4;

export class Wave {
  constructor(canvas) {
    this.canvas = canvas;
    [this.width, this.height, this.ratio] = [0, 0, 1];
    this.peaks = [];
    this.#readColours();
    this.clear();
    new ResizeObserver(() => this.#layOut()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.#readColours();
      this.draw(this.heardS);
    });
  }

  clear() {
    this.blocks = []; // [start, duration, peak]
    this.totalS = 0;
    this.windowS = FIRST_WINDOW_S;
    this.peaks.fill(0);
    this.draw(0);
  }

  add(peak, durationS) {
    this.blocks.push([this.totalS, durationS, peak]);
    this.totalS += durationS;
    if (this.totalS > this.windowS) {
      this.windowS *= 2; // in steps, so that bars do not crawl
      this.#fill();
    } else {
      this.#fillBlock(this.blocks.at(-1));
    }
  }

  draw(heardS) {
    this.heardS = heardS;
    const { height } = this;
    const pen = this.canvas.getContext("2d");
    pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    pen.clearRect(0, 0, this.width, height);
    const nHeard = (heardS / this.windowS) * this.peaks.length;
    this.peaks.forEach((peak, i) => {
      const size = Math.max(1, Math.sqrt(peak) * (height - 12));
      pen.fillStyle = peak > 0 && i < nHeard ? this.heardColour : this.restColour;
      pen.fillRect(i * PITCH_PX, (height - size) / 2, BAR_PX, size);
    });
  }

  #layOut() {
    this.ratio = window.devicePixelRatio || 1;
    this.width = this.canvas.clientWidth;
    this.height = this.canvas.clientHeight;
    this.canvas.width = Math.round(this.width * this.ratio);
    this.canvas.height = Math.round(this.height * this.ratio);
    this.peaks = new Array(Math.floor(this.width / PITCH_PX));
    this.#fill();
    this.draw(this.heardS);
  }

  #fill() {
    this.peaks.fill(0);
    this.blocks.forEach((block) => this.#fillBlock(block));
  }

  #fillBlock([startS, durationS, peak]) {
    const n = this.peaks.length;
    const from = Math.floor((startS / this.windowS) * n);
    const to = Math.max(from + 1, Math.ceil(((startS + durationS) / this.windowS) * n));
    for (let i = from; i < to && i < n; i += 1) this.peaks[i] = Math.max(this.peaks[i], peak);
  }

  #readColours() {
    const style = getComputedStyle(document.documentElement);
    this.heardColour = style.getPropertyValue("--accent");
    this.restColour = style.getPropertyValue("--bar");
  }
}
