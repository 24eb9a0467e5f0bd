// Lists the models of the upstream that a deployment's form names; a click fills one in.
{
  addEventListener("click", ({ target }) => {
    const box = target.closest?.(".upstream-models");
    if (!box || target.tagName !== "BUTTON") return;
    if (target.parentElement === box) list(box);
    else choose(box, target.textContent);
  });

  // What is typed narrows the list.
  addEventListener("input", ({ target }) => {
    const names = target.closest?.(".upstream-model")?.querySelector(".names");
    const term = target.value?.trim().toLowerCase();
    for (const each of names?.children ?? []) {
      each.hidden = !each.textContent.toLowerCase().includes(term);
    }
  });

  function fieldOf(box) {
    return box.parentElement.querySelector("input");
  }

  async function list(box) {
    const { form, name } = fieldOf(box);
    const status = box.querySelector("[role=status]");
    const names = box.querySelector(".names");
    const prefix = name.slice(0, -"upstream_model".length);
    const sent = new FormData();
    sent.set("csrfmiddlewaretoken", form.elements.csrfmiddlewaretoken.value);
    sent.set("deployment", box.dataset.deployment);
    for (const each of ["engine", "base_url", "api_key"]) {
      sent.set(each, form.elements[prefix + each].value);
    }
    names.hidden = true;
    status.textContent = "Asking the upstream …";
    const answer = await fetch(box.dataset.url, { method: "POST", body: sent }).catch(() => null);
    const found = await answer?.json().catch(() => null);
    if (!found?.names) {
      status.textContent = found?.error ?? "There is no answer from this server. Load the page again.";
      return;
    }
    status.textContent = found.names.length === 1 ? "1 model:" : `${found.names.length} models:`;
    names.replaceChildren(...found.names.map((each) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = each;
      return button;
    }));
    names.hidden = false;
  }

  function choose(box, chosen) {
    const field = fieldOf(box);
    field.value = chosen;
    // The form of a new model has its own id, which is mostly the same.
    const id = field.name === "upstream_model" ? null : field.form.elements.id;
    if (id && !id.value) id.value = chosen;
    box.querySelector("[role=status]").textContent = `${chosen} is chosen.`;
    box.querySelector(".names").hidden = true;
    field.focus();
  }
}
