// Opus packets to samples and back: by the browser (WebCodecs) or, to listen, by a decoder in wasm.
// Packets are bare, as in RFC 6716: without a `description`, WebCodecs takes and gives them so.

export const RATE_HZ = 48000;
const CHANNELS = 1;
const BITRATE_BPS = 32000;
const PACKET_US = 20000;

// How this browser decodes Opus: "webcodecs", "wasm", or null.
export async function decoderKind() {
  if (typeof AudioDecoder !== "undefined") {
    const config = { codec: "opus", sampleRate: RATE_HZ, numberOfChannels: CHANNELS };
    const answer = await AudioDecoder.isConfigSupported(config).catch(() => null);
    if (answer?.supported) return "webcodecs";
  }
  return typeof WebAssembly === "undefined" ? null : "wasm";
}

// A decoder for one response. `output(pcm)` gets Float32Array at 48 kHz, in order.
export async function makeDecoder(kind, output, fault) {
  return kind === "webcodecs" ? makeBrowserDecoder(output, fault) : makeWasmDecoder(output, fault);
}

function makeBrowserDecoder(output, fault) {
  const decoder = new AudioDecoder({
    output: (audio) => {
      const pcm = new Float32Array(audio.numberOfFrames);
      audio.copyTo(pcm, { planeIndex: 0, format: "f32-planar" });
      audio.close();
      output(pcm);
    },
    error: (error) => fault(error.message),
  });
  decoder.configure({ codec: "opus", sampleRate: RATE_HZ, numberOfChannels: CHANNELS });
  return {
    decode: (packet, mediaMs) => {
      if (decoder.state !== "configured") return;
      decoder.decode(new EncodedAudioChunk({ type: "key", timestamp: mediaMs * 1000, data: packet }));
    },
    flush: () => decoder.flush().catch(() => {}),
    close: () => { if (decoder.state !== "closed") decoder.close(); },
  };
}

async function makeWasmDecoder(output, fault) {
  await import("./vendor/opus-decoder.min.js");
  const { OpusDecoder } = globalThis["opus-decoder"];
  const decoder = new OpusDecoder({ channels: CHANNELS, streamCount: 1, coupledStreamCount: 0, channelMappingTable: [0] });
  await decoder.ready;
  let isClosed = false;
  return {
    decode: (packet) => {
      if (isClosed) return;
      const { channelData, samplesDecoded, errors } = decoder.decodeFrame(packet);
      if (errors?.length) fault(errors[0].message);
      else output(channelData[0].slice(0, samplesDecoded));
    },
    flush: async () => {},
    close: () => {
      if (!isClosed) decoder.free();
      isClosed = true;
    },
  };
}

// An encoder, or null where the browser has none. `output(packet)` gets one packet for each 20 ms.
export async function makeEncoder(output, fault) {
  if (typeof AudioEncoder === "undefined") return null;
  const config = {
    codec: "opus",
    sampleRate: RATE_HZ,
    numberOfChannels: CHANNELS,
    bitrate: BITRATE_BPS,
    opus: { format: "opus", frameDuration: PACKET_US, application: "voip" },
  };
  const answer = await AudioEncoder.isConfigSupported(config).catch(() => null);
  if (!answer?.supported) return null;
  const encoder = new AudioEncoder({
    output: (chunk) => {
      const packet = new Uint8Array(chunk.byteLength);
      chunk.copyTo(packet);
      output(packet);
    },
    error: (error) => fault(error.message),
  });
  encoder.configure(config);
  let nSamples = 0;
  return {
    encode: (pcm) => {
      if (encoder.state !== "configured") return;
      const timestamp = Math.round((nSamples / RATE_HZ) * 1e6);
      nSamples += pcm.length;
      const audio = new AudioData({
        format: "f32-planar", sampleRate: RATE_HZ, numberOfFrames: pcm.length, numberOfChannels: CHANNELS, timestamp, data: pcm,
      });
      encoder.encode(audio);
      audio.close();
    },
    close: () => { if (encoder.state !== "closed") encoder.close(); },
  };
}
