import { useEffect, useRef } from "preact/hooks";
import { brief, sentence } from "../format.js";
import type { Page } from "../page.js";

const LONGEST = 1024;

/** Asks for the broker's user name and password, where it refuses to go on without. */
export function Login({ page }: { page: Page }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const name = useRef("");
  const { needsLogin, reason } = page.site.connection.value;
  useEffect(() => {
    if (needsLogin && !dialog.current?.open) dialog.current?.showModal();
    if (!needsLogin) dialog.current?.close();
  }, [needsLogin]);
  const submit = (event: SubmitEvent) => {
    event.preventDefault();
    const fields = new FormData(event.currentTarget as HTMLFormElement);
    name.current = String(fields.get("user") ?? "");
    page.site.login(name.current, String(fields.get("password") ?? ""));
  };
  return (
    <dialog class="login" ref={dialog} aria-labelledby="login-title" onCancel={(event) => event.preventDefault()}>
      {needsLogin && (
        <form data-testid="login-form" onSubmit={submit}>
          <h2 id="login-title">Log in to the broker</h2>
          {reason ? <p role="alert">{sentence(brief(reason))}</p> : <p>This broker asks for a name and a password.</p>}
          <label>
            Name
            <input
              name="user"
              autocomplete="username"
              required
              maxLength={LONGEST}
              spellcheck={false}
              autofocus={!name.current}
              defaultValue={name.current}
            />
          </label>
          <label>
            Password
            <input
              name="password"
              type="password"
              autocomplete="current-password"
              maxLength={LONGEST}
              autofocus={name.current !== ""}
            />
          </label>
          <button type="submit" class="primary">
            Log in
          </button>
        </form>
      )}
    </dialog>
  );
}
