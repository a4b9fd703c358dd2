// A producer without a line of ours: plain JavaScript, the REST interface of Azure Storage Queue, a shared key.
// node producer.mjs ENDPOINT ACCOUNT KEY QUEUE TASK
import { createHmac } from "node:crypto";

const [endpoint, account, key, queue, task] = process.argv.slice(2);
const url = new URL(`${endpoint}/${queue}/messages`);
const body =
  "<QueueMessage><MessageText>" + Buffer.from(task).toString("base64") + "</MessageText></QueueMessage>";
const headers = {
  "x-ms-date": new Date().toUTCString(),
  "x-ms-version": "2021-12-02",
  "content-type": "application/xml",
};
const named = Object.keys(headers).filter((it) => it.startsWith("x-ms-")).sort();
const canonical = named.map((it) => `${it}:${headers[it]}\n`).join("");
const text =
  ["POST", "", "", String(Buffer.byteLength(body)), "", headers["content-type"], "", "", "", "", "", ""].join("\n") +
  `\n${canonical}/${account}${url.pathname}`;
const signature = createHmac("sha256", Buffer.from(key, "base64")).update(text, "utf8").digest("base64");

const answer = await fetch(url, {
  method: "POST",
  headers: { ...headers, Authorization: `SharedKey ${account}:${signature}` },
  body,
});
if (answer.status !== 201) {
  console.error(answer.status, await answer.text());
  process.exit(1);
}
