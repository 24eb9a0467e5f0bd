// Passkeys (WebAuthn): a form with data-passkey asks the authenticator, and sends its answer as JSON.

const { PublicKeyCredential } = window;
const KNOWS = Boolean(PublicKeyCredential?.parseRequestOptionsFromJSON);

function written() {
  return JSON.parse(document.getElementById("passkey-options").textContent).publicKey;
}

async function create() {
  const options = written();
  // A passkey is found without a user name, and asks for a fingerprint, face or PIN.
  options.authenticatorSelection = {
    residentKey: "required", requireResidentKey: true, userVerification: "required",
  };
  return navigator.credentials.create({
    publicKey: PublicKeyCredential.parseCreationOptionsFromJSON(options),
  });
}

async function get(options) {
  return navigator.credentials.get({ publicKey: PublicKeyCredential.parseRequestOptionsFromJSON(options) });
}

async function signIn(form) {
  const response = await fetch(form.action, { headers: { accept: "application/json" } });
  if (!response.ok) throw new Error(`status ${response.status}`);
  return get((await response.json()).request_options.publicKey);
}

const ASK = { create, authenticate: () => get(written()), "sign-in": signIn };

for (const form of document.querySelectorAll("form[data-passkey]")) {
  if (!KNOWS) continue;
  form.hidden = false;
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const problem = form.querySelector("[role=alert]");
    problem.hidden = true;
    try {
      form.elements.credential.value = JSON.stringify(await ASK[form.dataset.passkey](form));
      form.submit();
    } catch {
      problem.textContent = "No passkey was used. Try again, or choose another way.";
      problem.hidden = false;
    }
  });
}
