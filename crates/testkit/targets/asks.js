// Asks so often for its parent's number, by code that node has made, for each line that comes in.
"use strict";
function asks() { return process.ppid; }
function round(n) { let sum = 0; for (let i = 0; i < n; i++) sum += asks(); return sum; }

console.log(`ready pid=${process.pid}`);
require("readline").createInterface({ input: process.stdin }).on("line", (line) => {
  round(Number(line));
  console.log("done");
});
