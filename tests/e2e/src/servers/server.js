// Node.js: node server.js PORT DIRECTORY. A file is sent in chunks; a request with a body is answered with its length.
const http = require('http');
const fs = require('fs');
const path = require('path');
const [port, directory] = process.argv.slice(2);

const server = http.createServer((request, response) => {
  if (request.method === 'POST' || request.method === 'PUT') {
    let length = 0;
    request.on('data', (part) => { length += part.length; });
    request.on('end', () => response.end(`${length}\n`));
    return;
  }
  const file = fs.createReadStream(path.join(directory, path.basename(new URL(request.url, 'http://x').pathname)));
  file.on('error', () => { response.statusCode = 404; response.end('no such page\n'); });
  file.on('open', () => file.pipe(response));
});
server.keepAliveTimeout = 60000;
server.listen(Number(port), '::');
