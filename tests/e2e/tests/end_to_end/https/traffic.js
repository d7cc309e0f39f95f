// Clients and the backend of the tests of https services under reloads, upgrades and kills.
//
//   node traffic.js serve PORT           GET /bytes/N, /chunked/N, /slow/N (within a second); POST /echo
//   node traffic.js ask HOST ADDRESS PORT CERTIFICATE DIRECTORY
//
// `ask` goes on until the file DIRECTORY/stop is there, lets what is under way end, and prints what came of it as JSON. Every
// byte that arrives is compared. A request that certainly was not processed is sent again: on a kept connection that closed
// before a byte of the response came, and on a stream above the last one of a GOAWAY or refused.
'use strict';
const [crypto, fs, http, http2, https, tls] = ['crypto', 'fs', 'http', 'http2', 'https', 'tls'].map((name) => require(name));

const PATTERN_BYTES = 8 << 20;
const PATTERN = Buffer.alloc(PATTERN_BYTES);
for (let at = 0; at < PATTERN_BYTES; at++) PATTERN[at] = (at * 7 + (at / 251 | 0)) & 255;
const PATIENCE_MS = 25000;

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// Writes all of it, or a piece every 50 ms.
async function send(to, body, slowly) {
  for (let at = 0; at < body.length; at += 50000) {
    to.write(body.subarray(at, at + 50000));
    if (slowly) await pause(50);
  }
  to.end();
}

function serve(port) {
  const server = http.createServer((request, response) => {
    const [, kind, count] = request.url.split('/');
    if (kind === 'echo') {
      const length = request.headers['content-length'];
      if (length !== undefined) response.setHeader('Content-Length', length);
      return request.pipe(response);
    }
    const body = PATTERN.subarray(0, Number(count));
    if (kind === 'bytes') response.setHeader('Content-Length', body.length);
    request.resume();
    send(response, body, kind === 'slow');
  });
  Object.assign(server, { keepAliveTimeout: 0, requestTimeout: 0, headersTimeout: 0, timeout: 0 });
  server.listen(Number(port));
}

// A failure after which the request may be sent again.
class Unprocessed extends Error {}

function ask(host, address, port, certificate, directory) {
  const tally = { done: {}, bytes: 0, again: 0, failures: [] };
  const common = { host: address, port: Number(port), servername: host, ca: fs.readFileSync(certificate) };
  let stops = false;
  const look = setInterval(() => { stops = fs.existsSync(`${directory}/stop`); }, 50);

  // Reads a body, which is to be the first `wanted` bytes of the pattern.
  const compare = async (stream, wanted) => {
    let came = 0;
    for await (const piece of stream) {
      if (PATTERN.compare(piece, 0, piece.length, came, came + piece.length) !== 0) throw new Error(`WRONG after ${came} of ${wanted}`);
      came += piece.length;
    }
    if (came !== wanted) throw new Error(`ended after ${came} of ${wanted}`);
    tally.bytes += came;
  };

  const drawn = (slowly) => {
    const count = slowly ? 1 << 20 : Math.floor(2 ** (Math.random() * 20));
    const kinds = slowly ? ['slow', 'echo'] : ['bytes', 'chunked', 'echo'];
    const kind = kinds[Math.floor(Math.random() * kinds.length)];
    return { method: kind === 'echo' ? 'POST' : 'GET', path: kind === 'echo' ? '/echo' : `/${kind}/${count}`, count, slowly };
  };

  const http1 = async ({ method, path, count, slowly }, agent) => {
    const body = method === 'POST' ? PATTERN.subarray(0, count) : undefined;
    const headers = { host, ...(body && Math.random() < 0.5 ? { 'content-length': count } : {}) };
    const request = https.request({ ...common, agent, method, path, headers });
    const response = await new Promise((resolve, reject) => {
      request.on('response', resolve);
      request.on('error', (error) => reject(request.reusedSocket && error.code === 'ECONNRESET' ? new Unprocessed(error.message) : error));
      body ? send(request, body, slowly) : request.end();
    });
    if (response.statusCode !== 200) throw new Error(`status ${response.statusCode}`);
    await compare(response, count);
  };

  const session = () => new Promise((resolve, reject) => {
    const made = http2.connect(`https://${host}`, { createConnection: () => tls.connect({ ...common, ALPNProtocols: ['h2'] }) });
    made.on('goaway', (code, last) => { made.last = last; });
    made.once('remoteSettings', () => resolve(made));
    made.on('error', reject);
    made.on('close', () => reject(new Error('closed before its settings came')));
  });

  const stream = (made, headers) => {
    try {
      return made.request(headers, { endStream: headers[':method'] === 'GET' });
    } catch (error) {
      throw new Unprocessed(error.code);
    }
  };
  // A stream that its server has not processed.
  const isUnprocessed = (made, stream, error) => stream.id === undefined || stream.rstCode === http2.constants.NGHTTP2_REFUSED_STREAM
    || made.last !== undefined && stream.id > made.last || error.code === 'ERR_HTTP2_GOAWAY_SESSION';

  const exchange = async ({ method, path, count, slowly }, made) => {
    const length = method === 'POST' && Math.random() < 0.5 ? { 'content-length': count } : {};
    const asked = stream(made, { ':method': method, ':path': path, ':authority': host, ...length });
    try {
      const status = new Promise((resolve, reject) => {
        asked.on('response', (headers) => resolve(headers[':status']));
        asked.on('error', reject);
        asked.on('close', () => reject(new Error(`the stream was closed, ${asked.rstCode}`)));
      });
      if (method === 'POST') send(asked, PATTERN.subarray(0, count), slowly);
      const said = await status;
      if (said !== 200) throw new Error(`status ${said}`);
      await compare(asked, count);
    } catch (error) {
      throw isUnprocessed(made, asked, error) ? new Unprocessed(error.message) : error;
    }
  };

  // Messages one after the other, each of which comes back, then the closing.
  const talk = async (duplex) => {
    let buffered = Buffer.alloc(0);
    const pieces = duplex[Symbol.asyncIterator]();
    const read = async (count) => {
      while (buffered.length < count) {
        const { value, done } = await pieces.next();
        if (done) throw new Error('the WebSocket ended');
        buffered = Buffer.concat([buffered, value]);
      }
      const taken = buffered.subarray(0, count);
      buffered = buffered.subarray(count);
      return taken;
    };
    for (let number = 0; number < 20 && !stops; number++) {
      const sent = Buffer.from(`message ${number} ${crypto.randomBytes(20).toString('hex')}`);
      // A mask of zeros.
      duplex.write(Buffer.concat([Buffer.from([0x81, 0x80 | sent.length, 0, 0, 0, 0]), sent]));
      const head = await read(2);
      const came = await read(head[1]);
      if (head[0] !== 0x81 || !came.equals(sent)) throw new Error(`WRONG message ${came}`);
      tally.bytes += came.length;
      await pause(50);
    }
    duplex.write(Buffer.from([0x88, 0x82, 0, 0, 0, 0, 3, 232]));
    await read(4);
    duplex.end();
  };

  const socket1 = async () => {
    const key = crypto.randomBytes(16).toString('base64');
    const headers = { host, connection: 'Upgrade', upgrade: 'websocket', 'sec-websocket-version': 13, 'sec-websocket-key': key };
    const request = https.request({ ...common, agent: false, path: '/socket', headers });
    const upgraded = await new Promise((resolve, reject) => {
      request.on('upgrade', (response, socket) => resolve(socket));
      request.on('response', (response) => reject(new Error(`status ${response.statusCode}`)));
      request.on('error', reject);
      request.end();
    });
    await talk(upgraded);
    upgraded.destroy();
  };

  const socket2 = async () => {
    const made = await session();
    const asked = made.request({ ':method': 'CONNECT', ':protocol': 'websocket', ':scheme': 'https', ':path': '/socket', ':authority': host, 'sec-websocket-version': 13 });
    const status = await new Promise((resolve, reject) => {
      asked.on('response', (headers) => resolve(headers[':status']));
      asked.on('error', reject);
    });
    if (status !== 200) throw new Error(`status ${status}`);
    await talk(asked);
    made.close();
  };

  // Does something again and again until the end. A request that was not processed is tried five times.
  const lane = async (kind, once) => {
    while (!stops) {
      const began = Date.now();
      for (let left = 5; ; left--) {
        let timer;
        const late = new Promise((_, reject) => { timer = setTimeout(() => reject(new Error('nothing for 25 s')), PATIENCE_MS); });
        try {
          await Promise.race([once(), late]);
          tally.done[kind] = (tally.done[kind] || 0) + 1;
          break;
        } catch (error) {
          if (error instanceof Unprocessed && left > 1) { tally.again++; continue; }
          tally.failures.push({ kind, began, ended: Date.now(), why: `${error.code || ''} ${error.message}` });
          // Where a server is not there, it is not asked without end.
          await pause(20);
          break;
        } finally {
          clearTimeout(timer);
        }
      }
    }
  };

  const kept = (slowly) => {
    let made;
    return async () => {
      if (!made || made.closed || made.destroyed) made = await session();
      await exchange(drawn(slowly), made);
    };
  };
  const fresh = async () => {
    const made = await session();
    await exchange(drawn(false), made);
    made.close();
  };
  const shared = kept(false);
  const agent = new https.Agent({ keepAlive: true });
  const lanes = [
    ...[1, 2, 3].map(() => lane('HTTP/2, one connection', shared)),
    lane('HTTP/2, kept', kept(false)),
    lane('HTTP/2, new', fresh),
    lane('HTTP/2, slow', kept(true)),
    ...[1, 2, 3].map(() => lane('HTTP/1.1, kept', () => http1(drawn(false), agent))),
    lane('HTTP/1.1, new', () => http1(drawn(false), false)),
    lane('HTTP/1.1, slow', () => http1(drawn(true), agent)),
    lane('WebSocket by HTTP/1.1', socket1),
    lane('WebSocket by HTTP/2', socket2),
  ];
  Promise.all(lanes).then(() => {
    clearInterval(look);
    process.stdout.write(JSON.stringify(tally), () => process.exit(0));
  });
}

process.on('unhandledRejection', () => {});
const [what, ...rest] = process.argv.slice(2);
({ serve, ask })[what](...rest);
