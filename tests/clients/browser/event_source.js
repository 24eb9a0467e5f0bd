// Listens to an EventSource until it is told the end, or gives up: the data of its messages, of its errors, and how often it opened.

(url) =>
  new Promise((resolve) => {
    const told = { opened: 0, messages: [], errors: [], isClosedByServer: false };
    const source = new EventSource(url);
    const end = () => {
      source.close();
      resolve(told);
    };
    source.onopen = () => (told.opened += 1);
    source.onmessage = ({ data }) => {
      told.messages.push(data);
      if (data === "[DONE]") end();
    };
    source.onerror = (event) => {
      // An event that the server names `error` arrives here too, with its data.
      if (event.data !== undefined) told.errors.push(event.data);
      told.isClosedByServer = source.readyState === EventSource.CLOSED;
      if (told.isClosedByServer) end();
    };
  });
