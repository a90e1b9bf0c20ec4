// An error between the page and the server is told in words, with what its reader can do.

const AGAIN = "The page tries again by itself.";
const UNKNOWN = "It is unknown whether the change was made: look at the list of changes before you make it again.";

// Return the server's own words, or words for its status, and the remedy. Status 0 is no answer at all.
export function advice(status, detail, { isChange = false, isTried = false } = {}) {
  const said = sentence(detail || `the server answered ${status}`);
  if (isTried && [0, 429, 502, 503, 504].includes(status)) return `${said} Nothing was changed. Try it over a shorter time, or again in a moment.`;
  const unchanged = isChange ? "Nothing was changed. " : "";
  switch (status) {
    case 0: case 200: case 502: case 504:
      return `${said} ${isChange ? UNKNOWN : `${AGAIN} If this lasts, look whether the server runs.`}`;
    case 401: return `${said} ${unchanged}Sign in with a token that is valid.`;
    case 403: return `${said} ${unchanged}An administrator may do this, or give you a token that may.`;
    case 409: return `${said} ${unchanged}Look at what is there, and edit that.`;
    case 412: return `${said} ${unchanged}Look at it as it is now, and edit it again.`;
    case 428: return `${said} ${unchanged}It must be confirmed.`;
    case 429: case 503: return `${said} ${isChange ? `${unchanged}Try again in a moment.` : AGAIN}`;
    case 500: return `${said} ${isChange ? UNKNOWN : `${AGAIN} If this lasts, tell whoever runs the server.`}`;
    default: return detail || said;
  }
}

function sentence(text) {
  const begun = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(begun) ? begun : `${begun}.`;
}
