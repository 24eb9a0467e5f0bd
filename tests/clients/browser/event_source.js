// Listens to an EventSource until its end, or gives up; returns the data of its messages, of its errors, and
// how often it opened.

(url) =>
  new Promise((resolve) => {
    const found = { opened: 0, messages: [], errors: [], isClosedByServer: false };
    const source = new EventSource(url);
    const end = () => {
      source.close();
      resolve(found);
    };
    source.onopen = () => (found.opened += 1);
    source.onmessage = ({ data }) => {
      found.messages.push(data);
      if (data === "[DONE]") end();
    };
    source.onerror = (event) => {
      // An event that the server names `error` arrives here too, with its data.
      if (event.data !== undefined) found.errors.push(event.data);
      found.isClosedByServer = source.readyState === EventSource.CLOSED;
      if (found.isClosedByServer) end();
    };
  });
