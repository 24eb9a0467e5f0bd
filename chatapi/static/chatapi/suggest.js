// Suggests names in text fields with `data-suggest`, in the browser's own list, which works by keyboard and
// on phones.
{
  const WAIT_MS = 150; // From the last key to the request.
  const asked = new WeakMap(); // The last term that was requested, by field.
  let waiting;

  for (const event of ["focusin", "input"]) {
    addEventListener(event, ({ target: field }) => {
      if (!field.matches?.("input[data-suggest]")) return;
      clearTimeout(waiting);
      waiting = setTimeout(() => ask(field), event === "input" ? WAIT_MS : 0);
    });
  }

  async function ask(field) {
    const term = field.value.trim();
    if (asked.get(field) === term) return;
    asked.set(field, term);
    const url = new URL(field.dataset.suggest, location.href);
    url.searchParams.set("term", term);
    const answer = await fetch(url).catch(() => null);
    // Without suggestions, it is still a text field.
    if (!answer?.ok || asked.get(field) !== term) return;
    const { results } = await answer.json();
    listOf(field).replaceChildren(...results.map(({ text }) => new Option(text, text)));
  }

  function listOf(field) {
    if (field.list) return field.list;
    const list = document.createElement("datalist");
    list.id = `${field.id}_suggestions`;
    field.after(list);
    field.setAttribute("list", list.id);
    return list;
  }
}
