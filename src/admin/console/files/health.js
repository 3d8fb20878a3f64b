// What is wrong at this moment, and what to do about it: looked at all the time, on every page.

import * as api from "./api.js";
import { count, place, seconds, sentence } from "./format.js";

const EVERY_MS = 2000;
/** Longer than a claim waits when all is well: a settlement takes milliseconds, a lease of a settler that died half a minute. */
const CLAIM_LATE_S = 3;

const fault = (tone, title, advice) => ({ tone, title, advice });

/** By how it is away. */
function remedy(problem) {
  if (/refused|No such file/i.test(problem)) return "No process listens there: start it, and look into its log for why it ended.";
  if (/timed out/i.test(problem)) return "Its process or machine stands still, or the way there is cut: look at the machine (is the process stopped, is the disk full?) and the network, and restart it if it does not go on.";
  return "Start it, or look at its machine and the way there.";
}

function ofNodes(nodes) {
  const found = [];
  if (nodes.draining) found.push(fault("warn", "This process is being stopped", "The console goes away with it; other processes with the role admin have it too."));
  if (!nodes.ledger.up) found.push(fault("bad", "The ledger does not answer", `${sentence(nodes.ledger.problem)}. Nobody is paid and no rain can be prepared until it is back; wins wait in Redis and are not lost. Start the database, or look at its disk and its connections.`));
  for (const node of nodes.nodes) {
    const name = place(node.name);
    if (!node.up) found.push(fault("bad", `Node ${name} does not answer`, `${sentence(node.problem)}. Its users are told to try again, the other nodes' users notice nothing. ${remedy(node.problem)} When it is back its buckets are compared with the ledger by themselves.`));
    else for (const check of node.checks) found.push(fault(check.verdict === "warning" ? "warn" : "bad", `Node ${name}: ${check.what}`, `${sentence(check.advice)}.`));
  }
  if (nodes.slots_without_owner) found.push(fault("bad", `${count(nodes.slots_without_owner)} slots have no node`, "Rains there wait. Give the slots to nodes: redis-cli --cluster fix."));
  return found;
}

function ofFlow(flow, nodes) {
  const found = [];
  const waits = flow.claims_waiting + flow.leased + flow.retrying;
  const known = nodes && (!nodes.ledger.up || nodes.nodes.some((node) => !node.up));
  if (waits && flow.oldest_seconds > CLAIM_LATE_S) {
    const idle = !flow.leased && !flow.retrying && flow.credits_per_second === 0;
    const title = `${count(waits)} ${waits === 1 ? "claim waits" : "claims wait"} to be credited, the oldest for ${seconds(flow.oldest_seconds)}`;
    const advice = idle ? "Nobody works on them: no settler is running. Start a process with the role settle (hongbao serve --roles settle), or look into its log if there is one."
      : flow.credits_per_second > 0 ? "The settlers are at work, and slower than people win: it gets less by itself. More processes with the role settle share the work."
        : "A settler that died leaves its claims for half a minute, until its lease is over. If this lasts, the settlers cannot reach the ledger or the balance system: look into their log.";
    found.push(fault(flow.credits_per_second > 0 ? "warn" : "bad", title, advice));
  }
  if (flow.suspects.length) {
    const where = [...new Set(flow.suspects.map((suspect) => place(suspect.node)))].join(", ");
    found.push(fault("warn", `${count(flow.suspects.length)} suspect ${flow.suspects.length === 1 ? "bucket" : "buckets"} on ${where}`, "A node came back as another process, so nothing is given there until the steward has compared the buckets with the ledger: seconds. If it stays, no steward is running; hongbao repair RAIN does it at once."));
  }
  if (flow.problems.length && !known) found.push(fault("warn", "Not everything could be counted", flow.problems.slice(0, 3).join("; ")));
  return found;
}

async function look() {
  const [nodes, flow, failed] = await Promise.all([api.get("/v1/nodes", { background: true }), api.get("/v1/pipeline", { background: true }),
    api.may("webhooks", "read") ? api.get("/v1/deliveries?state=failed&limit=1", { background: true }).catch(() => null) : null]);
  const faults = [...ofNodes(nodes), ...ofFlow(flow, nodes)].sort((a, b) => (a.tone === "bad" ? 0 : 1) - (b.tone === "bad" ? 0 : 1));
  return { nodes, flow, faults, dead: flow.dead, failed: failed?.deliveries.length ?? 0 };
}

let [last, watchers, timer] = [null, new Set(), 0];

async function round() {
  if (!document.hidden && api.me()) {
    const since = last?.lost ?? Date.now();
    try {
      last = await look();
    } catch (problem) {
      if (problem.status === 401) return;
      last = { ...last, lost: since, faults: [problem.status === 0 ? fault("bad", "The server does not answer", "What you see stands still. The console tries again by itself; another process with the role admin has it too.") : fault("bad", sentence(problem.title), problem.message)] };
    }
    watchers.forEach((tell) => tell(last));
  }
  timer = setTimeout(round, EVERY_MS);
}

/** Looks as long as somebody is logged in. */
export function begin() {
  clearTimeout(timer);
  round();
}

export function end() {
  clearTimeout(timer);
  [last, timer] = [null, 0];
}

/** Tells of every look until the page is left; what is known is told at once. */
export function watch(page, tell) {
  watchers.add(tell);
  page.leave.push(() => watchers.delete(tell));
  if (last) tell(last);
}
