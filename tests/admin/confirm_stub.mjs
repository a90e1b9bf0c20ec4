// The page's confirm.js on a stub of the DOM and of the server; prints what it did as JSON.
// Arguments: the folder of the page's modules, and the button that the reader presses.

const [folder, pressed] = process.argv.slice(2);

class Element {
  constructor(tag) { this.tag = tag; this.children = []; this.attributes = {}; this.listeners = {}; this.textContent = ""; }
  setAttribute(name, value) { this.attributes[name] = value; }
  append(...children) { this.children.push(...children); }
  replaceChildren(...children) { this.children = children; }
  addEventListener(name, heard) { this.listeners[name] = heard; }
  showModal() { queueMicrotask(() => { this.returnValue = pressed; this.listeners.close(); }); }
  texts() { return [this.textContent, ...this.children.flatMap((c) => (typeof c === "string" ? [c] : c.texts()))]; }
}

const elements = {};
const calls = [];
const planned = { revision: 7, changes: 1_004, losses: ["x is lifted"], all_losses: 3, heirs: { "a/b": ["namespaces.a/*", "defaults"] }, differences: [
  { kind: "tenant", name: "a\u202eb", path: "tenants.a\u202eb", before: { publish: { weight: 1 } }, after: null },
  { kind: "namespace", name: "a/b", path: "namespaces.a/b", before: { locked: true }, after: null },
  { kind: "namespace", name: "c", path: "namespaces.c", before: null, after: {} },
  { kind: "job", name: "", path: "job", before: { publish: { weight: 1, bytes_per_second: 8388608 } },
    after: { publish: { weight: 1, bytes_per_second: 8388609 } } },
] };
globalThis.document = { createElement: (tag) => new Element(tag), getElementById: (id) => (elements[id] ??= new Element(id)) };
globalThis.sessionStorage = { getItem: () => "token" };
globalThis.fetch = async (path, { method, headers, body }) => {
  calls.push([method, path, headers["If-Match"] ?? null, body ?? null]);
  const isConfirmed = method === "GET" || path.includes("yes=true");
  const value = method === "GET" ? planned : isConfirmed ? { revision: 8 } : { detail: "costs", losses: ["y is lifted"] };
  return { ok: isConfirmed, status: isConfirmed ? 200 : 428, json: async () => value, headers: { get: () => null } };
};

const { confirmed, rollBack } = await import(`${folder}/confirm.js`);
const shown = () => elements["confirmation-text"].texts().filter((text) => text);
const change = await confirmed("/p?why=z", { method: "PUT", body: { f: 2 }, ifMatch: '"5"' }, [["f", "1", "2"]])
  .then(({ value }) => value.revision, (error) => error.message);
const asked = shown();
const rolledBack = await rollBack(3);
console.log(JSON.stringify({ change, asked, rolledBack, planned: shown(), calls }));
