// node eventsource.cjs URL: reads it by the package `eventsource`; what came, as one line of JSON.
const { EventSource } = require("eventsource");
const record = require("./record.js");

record(new EventSource(process.argv[2])).then((seen) => console.log(JSON.stringify(seen)));
