// What the page shows is in its address, so that a link shows the same: job, level, opened scopes, range, dimension.

const RANGES = ["300", "900", "3600", "21600", "86400", "604800", "2592000"];
const CHOICES = { level: ["resource_group", "tenant"], dimension: ["messages", "bytes"], range: RANGES };
const PRESETS = { job: "", level: "resource_group", search: "", throttled: "", dimension: "messages", range: "300" };

export const address = {
  // What the address says, and the presets of what it leaves out; `open` are the opened scopes.
  read() {
    const said = new URLSearchParams(location.hash.slice(1));
    const isKnown = ([key, value]) => key in PRESETS && (CHOICES[key]?.includes(value) ?? true);
    return { ...PRESETS, ...Object.fromEntries([...said].filter(isKnown)), open: said.getAll("open") };
  },

  // Change some of it; a preset is left out.
  write(changes) {
    const { open, ...values } = { ...address.read(), ...changes };
    const said = new URLSearchParams(Object.entries(values).filter(([key, value]) => value !== PRESETS[key]));
    for (const scope of open) said.append("open", scope);
    history.replaceState(null, "", `#${said}`);
  },

  forget() { history.replaceState(null, "", location.pathname); },
};
