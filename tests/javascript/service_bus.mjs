// What a program does with the JavaScript SDK of Service Bus, and what it sees; prints one JSON object.
// node service_bus.mjs CONNECTION_STRING SCENARIO [BODY]
import { ServiceBusClient, delay } from "@azure/service-bus";

const [connection, scenario, ...words] = process.argv.slice(2);
const client = new ServiceBusClient(connection, { retryOptions: { maxRetries: 1, timeoutInMs: 20000 } });
const WAIT = { maxWaitTimeInMs: 15000 };

async function one(receiver) {
  const [message] = await receiver.receiveMessages(1, WAIT);
  return message;
}

const scenarios = {
  // Nobody gives the messages an id.
  async withoutIds(queue) {
    const sender = client.createSender(queue);
    const receiver = client.createReceiver(queue);
    await sender.sendMessages([{ body: { n: 1 } }, { body: "two" }]);
    const seen = [];
    const first = await one(receiver);
    seen.push([typeof first.messageId, first.messageId.length, first.body, first.deliveryCount]);
    await receiver.abandonMessage(first);
    const again = await one(receiver);
    seen.push([again.messageId === first.messageId, again.deliveryCount]);
    await receiver.renewMessageLock(again);
    await receiver.completeMessage(again);
    const second = await one(receiver);
    await receiver.deadLetterMessage(second, { deadLetterReason: "bad", deadLetterErrorDescription: "two" });
    const letters = client.createReceiver(queue, { subQueueType: "deadLetter" });
    const letter = await one(letters);
    seen.push([letter.messageId === second.messageId, letter.deadLetterReason, letter.body]);
    await letters.completeMessage(letter);
    await sender.sendMessages({ body: "three" });
    const [peeked] = await receiver.peekMessages(1);
    const third = await one(receiver);
    seen.push([peeked.messageId === third.messageId]);
    await receiver.deferMessage(third);
    const [deferred] = await receiver.receiveDeferredMessages(third.sequenceNumber);
    await receiver.completeMessage(deferred);
    return seen;
  },
  // A handler that completes by itself, as most programs have it.
  async subscribe(queue) {
    const sender = client.createSender(queue);
    const receiver = client.createReceiver(queue);
    const seen = [];
    const errors = [];
    await sender.sendMessages([{ body: 1 }, { body: 2 }, { body: 3 }]);
    const subscription = receiver.subscribe({
      processMessage: async (message) => {
        seen.push(message.body);
      },
      processError: async (problem) => {
        errors.push(problem.error.message);
      },
    });
    while (seen.length < 3) await delay(10);
    await subscription.close();
    await receiver.close();
    return { seen: seen.sort(), errors };
  },
  async duplicates(queue) {
    const sender = client.createSender(queue);
    await sender.sendMessages([{ body: 1, messageId: "a" }, { body: 1, messageId: "a" }, { body: 2 }, { body: 3 }]);
    const [sequence] = await sender.scheduleMessages({ body: 4 }, new Date(Date.now() + 3600000));
    await sender.cancelScheduledMessages(sequence);
    return (await client.createReceiver(queue).peekMessages(10)).length;
  },
  async session(queue) {
    const said = [];
    for (const open of [() => client.acceptSession(queue, "s-1"), () => client.acceptNextSession(queue)]) {
      try {
        await open();
        said.push("opened");
      } catch (error) {
        said.push([error.name, error.code, error.message]);
      }
    }
    return said;
  },
  // A task, the way that most programs in JavaScript send JSON.
  async send(queue, body, traceparent) {
    await client.createSender(queue).sendMessages({
      body: JSON.stringify(JSON.parse(body)),
      applicationProperties: traceparent ? { "Diagnostic-Id": traceparent } : {},
    });
    return "sent";
  },
};

const [queue, ...rest] = words;
const answer = await scenarios[scenario](queue, ...rest);
await client.close();
console.log(JSON.stringify(answer));
process.exit(0);
