import trunkline from './index.js';

export const { Client, Channel, Connection, SFTP, connect, utils } = trunkline;
export default trunkline;
