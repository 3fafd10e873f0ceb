// Node.js: a timer, a worker thread and a hash chain. Goes on slowly until it may hurry.
const { existsSync } = require('node:fs');
const { Worker, isMainThread, parentPort } = require('node:worker_threads');
const { createHash } = require('node:crypto');
if (isMainThread) {
  const steps = Number(process.argv[2]);
  const worker = new Worker(__filename);
  let step = 0;
  const timer = setInterval(() => {}, 1000);
  worker.on('message', (state) => {
    console.log(`step ${step} ${state}`);
    step += 1;
    if (step === steps) { worker.postMessage(null); clearInterval(timer); console.log('end'); } else { setTimeout(() => worker.postMessage(step), step < 60 || existsSync('hurry') ? 10 : 500); }
  });
  worker.postMessage(step);
} else {
  let state = '';
  parentPort.on('message', (step) => {
    if (step === null) { parentPort.close(); return; }
    state = createHash('sha256').update(state + step).digest('hex');
    parentPort.postMessage(state);
  });
}
