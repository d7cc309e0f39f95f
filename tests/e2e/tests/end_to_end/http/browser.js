// What the page does with its resources; `expected` (file, its bytes, what they sum up to, in the page's order) and
// `protocol` (by which they come), `form` (whether it ends with one) and `socket` (whether it tries a WebSocket) are the page's,
// written by browser.rs, which also defines the sums.
const arrived = new Map();
// Scripts call this, with a text.
const loaded = (name, text) => arrived.set(name, textSum(text));

// FNV-1a, 32 bits.
const sum = (bytes) => {
  let sum = 0x811c9dc5;
  for (const byte of bytes) sum = Math.imul(sum ^ byte, 0x01000193);
  return sum >>> 0;
};
const textSum = (text) => sum(new TextEncoder().encode(text));

const imageSum = (image) => {
  const canvas = document.createElement('canvas');
  [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
  const context = canvas.getContext('2d', { willReadFrequently: true });
  context.drawImage(image, 0, 0);
  return sum(context.getImageData(0, 0, canvas.width, canvas.height).data.filter((_, at) => at % 4 !== 3));
};

const styleSum = (name) => {
  const text = getComputedStyle(document.documentElement).getPropertyValue(`--${name.split('.')[0]}`).trim();
  return textSum(text.slice(1, -1));
};

const named = (kind) => expected.filter(([name]) => name.endsWith(kind)).map(([name]) => name);

const fetched = async (name) => {
  const bytes = new Uint8Array(await (await fetch(name)).arrayBuffer());
  arrived.set(name, sum(bytes));
  return bytes;
};
// They begin with the page; everything else is fetched beside them.
const data = Promise.all(named('.dat').map(fetched));

// A form with a file, sent as a person would; what the server answers.
const upload = (bytes) => new Promise((resolve) => {
  const files = new DataTransfer();
  files.items.add(new File([bytes], 'upload', { type: 'application/octet-stream' }));
  document.querySelector('input[type=file]').files = files.files;
  const frame = document.querySelector('iframe');
  frame.addEventListener('load', () => resolve(frame.contentDocument.body.innerText));
  document.querySelector('form').submit();
});

// A message that comes back, over a WebSocket. (While something is fetched, the browser's virtual time stands still.)
const talked = async () => {
  let answer;
  const socket = new WebSocket(`wss://${location.host}/socket`);
  socket.onopen = () => socket.send('from a browser');
  socket.onmessage = ({ data }) => { answer = data; };
  socket.onerror = () => { answer = 'no WebSocket'; };
  for (let left = 500; left > 0 && answer === undefined; left--) await (await fetch(`?${left}`)).text();
  return answer;
};

const wrong = () => {
  const file = (entry) => entry.name.split('/').pop();
  const entries = new Map(performance.getEntriesByType('resource').map((entry) => [file(entry), entry]));
  const wrong = [];
  for (const [name, bytes, wanted] of expected) {
    const entry = entries.get(name);
    if (!entry || entry.responseStatus !== 200) wrong.push(`${name}: status ${entry?.responseStatus}`);
    else if (entry.decodedBodySize !== bytes) wrong.push(`${name}: ${entry.decodedBodySize} bytes, not ${bytes}`);
    else if (entry.transferSize < bytes) wrong.push(`${name}: not from the network`);
    else if (entry.nextHopProtocol !== protocol) wrong.push(`${name}: by ${entry.nextHopProtocol}`);
    if (arrived.get(name) !== wanted) wrong.push(`${name}: sums up to ${arrived.get(name)}, not to ${wanted}`);
  }
  return wrong;
};

addEventListener('load', async () => {
  const result = document.getElementById('result');
  try {
    const bytes = await data;
    for (const name of named('.bmp')) arrived.set(name, imageSum(document.getElementById(name)));
    for (const name of named('.css')) arrived.set(name, styleSum(name));
    const problems = wrong();
    if (form && !(await upload(bytes[0])).startsWith('POST /upload ')) problems.push('the form was not answered');
    const said = socket ? await talked() : 'from a browser';
    if (said !== 'from a browser') problems.push(`the WebSocket said ${said}`);
    result.textContent = problems.length ? problems.join('; ') : 'well';
  } catch (error) {
    result.textContent = `${error}`;
  }
});
