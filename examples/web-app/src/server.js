// A web application that knows whether it is well.
const http = require("node:http");

const port = Number(process.env.PORT || 3000);
const started = Date.now();

http
  .createServer((request, response) => {
    if (request.url === "/healthz") {
      response.writeHead(204).end();
      return;
    }
    response.writeHead(200, { "content-type": "text/plain" });
    response.end(`up for ${Math.round((Date.now() - started) / 1000)} s\n`);
  })
  .listen(port, "0.0.0.0");
