// What the page shows is in its address, so that a link shows the same: job, level, opened scopes, range, dimension.

// Where the page offers the values of what is chosen among some.
const CHOICES = { level: "[name=level]", dimension: "#dimension option", range: "#range option" };
const PRESETS = { job: "", level: "resource_group", search: "", throttled: "", dimension: "messages", range: "300" };

export const address = {
  // What the address says, and the presets of what it leaves out; `open` are the opened scopes.
  read() {
    const said = new URLSearchParams(location.hash.slice(1));
    const isChoice = (offered, value) => [...document.querySelectorAll(offered)].some((each) => each.value === value);
    const isKnown = ([key, value]) => key in PRESETS && (!(key in CHOICES) || isChoice(CHOICES[key], value));
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
