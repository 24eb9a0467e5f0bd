// Downloads an export while it counts its rows. Without this script its links are plain downloads.

const NEWLINE = 10;
const exact = new Intl.NumberFormat("en");

document.addEventListener("click", (event) => {
  const link = event.target.closest("[data-export] a[download]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  const box = link.closest("[data-export]");
  if (!box.dataset.running) download(link.href, box);
});

async function download(url, box) {
  const part = (name) => box.querySelector(`[data-is=${name}]`);
  const [stop, bar, state] = ["stop", "bar", "state"].map(part);
  const cancelled = new AbortController();
  box.dataset.running = "yes";
  stop.hidden = bar.hidden = false;
  bar.removeAttribute("value");
  stop.onclick = () => cancelled.abort();
  let rows = 0;
  try {
    const response = await fetch(url, { signal: cancelled.signal });
    if (!response.ok || response.redirected) throw new Error(await refusal(response));
    const about = Number(response.headers.get("x-estimated-rows"));
    const chunks = [];
    rows = url.includes(".csv") ? -1 : 0; // The first line of a CSV is its header.
    let shownAt = 0;
    for await (const chunk of read(response)) {
      chunks.push(chunk);
      for (const byte of chunk) if (byte === NEWLINE) rows += 1;
      if (about) bar.value = Math.min(Math.max(rows, 0) / about, 1);
      if (Date.now() - shownAt < 250) continue;
      shownAt = Date.now();
      const of = about ? ` of about ${exact.format(Math.max(about, rows))}` : "";
      state.textContent = `${exact.format(Math.max(rows, 0))}${of} rows`;
    }
    const name = /filename="([^"]+)"/.exec(response.headers.get("content-disposition"))[1];
    const file = new Blob(chunks);
    save(file, name);
    state.textContent =
      `${name}: ${exact.format(Math.max(rows, 0))} row${rows === 1 ? "" : "s"}, ${size(file.size)}`;
  } catch (error) {
    state.textContent = cancelled.signal.aborted
      ? "Cancelled; nothing was saved."
      : `Broke off, nothing was saved: ${error.message}`;
  } finally {
    delete box.dataset.running;
    stop.hidden = bar.hidden = true;
  }
}

async function* read(response) {
  const reader = response.body.getReader();
  for (let each = await reader.read(); !each.done; each = await reader.read()) yield each.value;
}

async function refusal(response) {
  if (response.redirected) return "you are not signed in any more.";
  const isText = (response.headers.get("content-type") || "").startsWith("text/plain");
  return isText ? (await response.text()).trim() : `the server answered ${response.status}.`;
}

function save(file, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(file);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

function size(bytes) {
  return bytes < 1e6 ? `${(bytes / 1e3).toFixed(1)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
}
