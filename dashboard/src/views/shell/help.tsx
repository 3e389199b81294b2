import { useEffect, useRef } from "preact/hooks";
import type { Page } from "../page.js";
import { KEYS } from "./keys.js";

/** What the keys do. */
export function Help({ page }: { page: Page }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const isOpen = page.isHelpOpen.value;
  useEffect(() => {
    if (isOpen && !dialog.current?.open) dialog.current?.showModal();
    if (!isOpen) dialog.current?.close();
  }, [isOpen]);
  const close = () => {
    page.isHelpOpen.value = false;
  };
  return (
    <dialog ref={dialog} aria-labelledby="help-title" data-testid="help-dialog" onClose={close}>
      <h2 id="help-title">Keys</h2>
      <dl class="keys">
        {KEYS.map(({ keys, what }) => (
          <div key={what}>
            <dt>
              {keys.map((key) => (
                <kbd key={key}>{key}</kbd>
              ))}
            </dt>
            <dd>{what}</dd>
          </div>
        ))}
      </dl>
      <p>
        A class in a legend is a button: it shows this class alone. The address keeps the view, the filter, what is
        selected and the enlarged stream, so a copied link shows the same.
      </p>
      <button type="button" onClick={close}>
        Close
      </button>
    </dialog>
  );
}
