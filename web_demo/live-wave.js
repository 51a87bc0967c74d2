// The last seconds of sound, the newest at the right: what the microphone hears and what is spoken.

const PITCH_PX = 4;
const BAR_PX = 2;
const SLICE_MS = 40;
const RISE = 0.6;

export class LiveWave {
  constructor(canvas) {
    this.canvas = canvas;
    this.bars = []; // [peak heard, peak spoken], the newest last
    this.now = [0, 0];
    this.sinceMs = 0;
    this.isStill = false;
    this.#readColours();
    new ResizeObserver(() => this.#layOut()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.#readColours();
      this.#draw();
    });
  }

  addHeard(peak) {
    this.now[0] = Math.max(this.now[0], peak);
  }

  addSpoken(peak) {
    this.now[1] = Math.max(this.now[1], peak);
  }

  // To be called for every picture. Rests when all is silent.
  tick(nowMs) {
    const nSlices = Math.min(this.bars.length, Math.floor((nowMs - this.sinceMs) / SLICE_MS));
    if (nSlices < 1) return;
    this.sinceMs = nowMs;
    for (let i = 0; i < nSlices; i += 1) {
      this.bars.shift();
      this.bars.push(this.now);
    }
    this.now = [0, 0];
    const isSilent = this.bars.every(([heard, spoken]) => heard + spoken < 0.002);
    if (!(isSilent && this.isStill)) this.#draw();
    this.isStill = isSilent;
  }

  #draw() {
    const { canvas, height } = this;
    const pen = canvas.getContext("2d");
    pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    pen.clearRect(0, 0, this.width, height);
    this.bars.forEach(([heard, spoken], i) => {
      const isSpoken = spoken >= heard;
      const size = Math.max(1, Math.min(1, Math.max(heard, spoken)) ** RISE * (height - 8));
      pen.fillStyle = size <= 1.5 ? this.restColour : isSpoken ? this.spokenColour : this.heardColour;
      pen.fillRect(i * PITCH_PX, (height - size) / 2, BAR_PX, size);
    });
  }

  #layOut() {
    this.ratio = window.devicePixelRatio || 1;
    this.width = this.canvas.clientWidth;
    this.height = this.canvas.clientHeight;
    this.canvas.width = Math.round(this.width * this.ratio);
    this.canvas.height = Math.round(this.height * this.ratio);
    const n = Math.floor(this.width / PITCH_PX);
    const missing = Array.from({ length: Math.max(0, n - this.bars.length) }, () => [0, 0]);
    this.bars = [...missing, ...this.bars].slice(-n || this.bars.length);
    this.#draw();
  }

  #readColours() {
    const style = getComputedStyle(document.documentElement);
    this.spokenColour = style.getPropertyValue("--accent");
    this.heardColour = style.getPropertyValue("--user");
    this.restColour = style.getPropertyValue("--bar");
  }
}
