// The form that begins a session.

import { h } from "./dom.js";
import * as api from "./api.js";
import { busy, field, input } from "./parts.js";

export function login(then, text) {
  const key = input("key", { placeholder: "bootstrap", autocomplete: "username", spellcheck: "false", autocapitalize: "none" });
  const secret = input("secret", { type: "password", required: true, autocomplete: "current-password" });
  const fault = h("p", { class: "fault", role: "alert" });
  const enter = h("button", { type: "submit", class: "primary", id: "log-in" }, "Log in");
  const send = (event) => {
    event.preventDefault();
    busy(enter, async () => {
      fault.textContent = "";
      try {
        await api.logIn(key.value, secret.value);
        then();
      } catch (problem) {
        fault.textContent = `${problem.title}: ${problem.message}.`;
        secret.select();
      }
    });
  };
  return h("main", { class: "login" }, h("form", { class: "card", onsubmit: send },
    h("img", { src: "/console/icon.svg", alt: "", width: "44", height: "44" }),
    h("h1", {}, "hongbao"),
    h("p", { class: "hint" }, text ?? "Log in with a key of the admin API. The first one is in the file api-key of the server's data directory."),
    field("Key", key),
    field("Secret", secret, "Or paste the whole key, id and secret, here."),
    fault, enter));
}
